package main

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// What the published OpenAPI adds to the Go types.
type openAPISchema struct {
	Required   []string                  `json:"required"`
	MapType    string                    `json:"x-kubernetes-map-type"`
	ListType   string                    `json:"x-kubernetes-list-type"`
	MapKeys    []string                  `json:"x-kubernetes-list-map-keys"`
	Default    json.RawMessage           `json:"default"`
	Properties map[string]*openAPISchema `json:"properties"`
	GVK        []struct {
		Group, Version, Kind string
	} `json:"x-kubernetes-group-version-kind"`
}

func readOpenAPI(folder string) (map[string]*openAPISchema, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*_openapi.json"))
	if err != nil {
		return nil, err
	}
	all := map[string]*openAPISchema{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var doc struct {
			Components struct {
				Schemas map[string]*openAPISchema `json:"schemas"`
			} `json:"components"`
		}
		if err := json.Unmarshal(data, &doc); err != nil {
			return nil, err
		}
		for name, s := range doc.Components.Schemas {
			all[name] = s
		}
	}
	return all, nil
}
