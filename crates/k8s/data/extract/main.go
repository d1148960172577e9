// Command extract writes Tombolo's Kubernetes tables: ../types.txt from the Go types and the published OpenAPI,
// ../resources.txt from the published discovery documents. See ../README.md.
package main

import (
	"flag"
	"log"
	"os"
	"path/filepath"
)

func main() {
	kubernetes := flag.String("kubernetes", "", "folder of the k8s.io/kubernetes module (its api/ folder is read)")
	out := flag.String("out", "..", "folder to write to")
	flag.Parse()
	if *kubernetes == "" {
		log.Fatal("-kubernetes is missing; see ../README.md")
	}
	schemas, err := readOpenAPI(filepath.Join(*kubernetes, "api", "openapi-spec", "v3"))
	check(err)
	write(filepath.Join(*out, "types.txt"), typesTable(schemas))
	resources, err := resourcesTable(filepath.Join(*kubernetes, "api", "discovery"))
	check(err)
	write(filepath.Join(*out, "resources.txt"), resources)
	write(filepath.Join(*out, "protobuf_zero.txt"), zeroCases())
}

func write(path, text string) {
	check(os.WriteFile(path, []byte(text), 0o644))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
