package experiment

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/doctor"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// describeMachine returns the properties of the machine on which the results of these scenarios depend.
func describeMachine(ctx context.Context, scenarios []*scenario.Scenario, backend, program string) (report.Environment, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return report.Environment{}, fmt.Errorf("ask for the kernel's version: %w", err)
	}
	first := scenarios[0]
	e := report.Environment{
		Kernel: unix.ByteSliceToString(u.Release[:]), CPUs: runtime.NumCPU(), Backend: backend,
		Congestion: first.Congestion, Seed: first.Seed, Programs: map[string]string{},
	}
	programs := map[string][]string{}
	for _, s := range scenarios {
		maps.Copy(programs, versionCommands(s, program))
	}
	for name, argv := range programs {
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			return e, fmt.Errorf("%s does not run: %w; is it installed?", name, err)
		}
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		e.Programs[name] = first
	}
	if slices.ContainsFunc(scenarios, func(s *scenario.Scenario) bool {
		return slices.Contains(s.Kinds(), scenario.WireGuard)
	}) {
		e.Programs["wireguard"] = wireGuard()
	}
	return e, nil
}

// wireGuard names the implementation of WireGuard in use: the kernel's or the embedded one.
func wireGuard() string {
	kind, err := doctor.TryWireGuard()
	switch {
	case err != nil:
		return "none" // its procedures may be optional
	case kind == "kernel":
		return "the kernel's"
	}
	version := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "golang.zx2c4.com/wireguard" {
				version = " " + m.Version
			}
		}
	}
	return "within dcol, in user space (golang.zx2c4.com/wireguard" + version + ")"
}

// versionCommands returns the commands that print the versions of a scenario's programs.
func versionCommands(s *scenario.Scenario, program string) map[string][]string {
	programs := map[string][]string{}
	switch s.Workload.Kind {
	case scenario.Upload, scenario.Download:
		programs["iperf3"] = []string{"iperf3", "--version"}
	case scenario.HTTP:
		programs["curl"] = []string{"curl", "--version"}
		programs["nginx"] = []string{"nginx", "-v"}
	}
	if slices.Contains(s.Kinds(), scenario.OpenVPN) {
		if path, err := exec.LookPath("openvpn"); err == nil { // its procedures may be optional
			programs["openvpn"] = []string{path, "--version"}
		}
	}
	if s.RunsDCol() {
		programs["dcol"] = []string{program, "--version"}
	}
	return programs
}
