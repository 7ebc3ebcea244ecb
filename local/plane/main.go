// Localplane is a Kubernetes control plane in one program: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler and kubectl, and kubelet and kube-proxy for a real node on the same machine.
//
// `localplane NAME ARGS...` runs the program NAME, as does a link to it that is called NAME. The versions are those of
// go.mod; the build's -ldflags put the same Kubernetes version into what the programs say of themselves.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const self = "localplane"

// commands makes each program's command only when it is asked for: making one registers flags and metrics.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kube-proxy":              kubeproxy.NewProxyCommand,
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	name := filepath.Base(os.Args[0])
	if len(os.Args) > 1 && commands[name] == nil && name != "etcd" {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	makeCommand, known := commands[name]
	if !known {
		programs := append(slices.Sorted(maps.Keys(commands)), "etcd")
		fmt.Fprintf(os.Stderr, "%s: no program %q; it is one of: %s\n", self, name, strings.Join(programs, ", "))
		os.Exit(2)
	}
	os.Exit(cli.Run(makeCommand()))
}
