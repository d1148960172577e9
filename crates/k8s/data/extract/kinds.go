package main

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// The stable group-versions. Adding one is adding one line here.
var groups = []struct {
	group, version string
	add            func(*runtime.Scheme) error
}{
	{"", "v1", corev1.AddToScheme},
	{"admissionregistration.k8s.io", "v1", admissionregistrationv1.AddToScheme},
	{"apiextensions.k8s.io", "v1", apiextensionsv1.AddToScheme},
	{"apiregistration.k8s.io", "v1", apiregistrationv1.AddToScheme},
	{"apps", "v1", appsv1.AddToScheme},
	{"authentication.k8s.io", "v1", authenticationv1.AddToScheme},
	{"authorization.k8s.io", "v1", authorizationv1.AddToScheme},
	{"autoscaling", "v1", autoscalingv1.AddToScheme},
	{"autoscaling", "v2", autoscalingv2.AddToScheme},
	{"batch", "v1", batchv1.AddToScheme},
	{"certificates.k8s.io", "v1", certificatesv1.AddToScheme},
	{"coordination.k8s.io", "v1", coordinationv1.AddToScheme},
	{"discovery.k8s.io", "v1", discoveryv1.AddToScheme},
	{"events.k8s.io", "v1", eventsv1.AddToScheme},
	{"flowcontrol.apiserver.k8s.io", "v1", flowcontrolv1.AddToScheme},
	{"networking.k8s.io", "v1", networkingv1.AddToScheme},
	{"node.k8s.io", "v1", nodev1.AddToScheme},
	{"policy", "v1", policyv1.AddToScheme},
	{"rbac.authorization.k8s.io", "v1", rbacv1.AddToScheme},
	{"resource.k8s.io", "v1", resourcev1.AddToScheme},
	{"scheduling.k8s.io", "v1", schedulingv1.AddToScheme},
	{"storage.k8s.io", "v1", storagev1.AddToScheme},
}

// Meta types that are read or written but belong to no group of their own.
var metaTypes = []any{
	metav1.Status{}, metav1.DeleteOptions{}, metav1.WatchEvent{}, metav1.PartialObjectMetadata{},
	metav1.PartialObjectMetadataList{}, metav1.Table{}, metav1.List{}, metav1.LabelSelector{},
}

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, g := range groups {
		utilruntime.Must(g.add(s))
	}
	return s
}

func stable(group, version string) bool {
	for _, g := range groups {
		if g.group == group && g.version == version {
			return true
		}
	}
	return false
}
