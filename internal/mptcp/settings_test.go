package mptcp_test

import (
	"errors"
	"testing"

	"github.com/detour-collective/dcol/internal/mptcp"
	"github.com/detour-collective/dcol/internal/mptcp/internal/threehosts"
)

// The settings are those of the namespace in which Open was called, whichever
// thread reads or writes them.
func TestSettingsBelongToTheirNamespace(t *testing.T) {
	n := threehosts.New(t)
	client, server := open(t, n.Client), open(t, n.Server)
	previous, err := client.AcquireUserspacePM()
	if err != nil || previous != mptcp.KernelPM {
		t.Fatalf("path manager was %q (error %v), want %q", previous, err, mptcp.KernelPM)
	}
	n.Server.Sysctl(t, "net/mptcp/allow_join_initial_addr_port", "0")
	for _, tc := range []struct {
		name string
		ns   *mptcp.Namespace
		want mptcp.Settings
	}{
		{"client", client, mptcp.Settings{Enabled: true, PathManager: mptcp.UserspacePM, AllowJoinInitial: true}},
		{"server", server, mptcp.Settings{Enabled: true, PathManager: mptcp.KernelPM}},
	} {
		if got, err := tc.ns.Settings(); err != nil || got != tc.want {
			t.Errorf("%s: settings %+v, error %v; want %+v", tc.name, got, err, tc.want)
		}
	}
	if err := client.SetPM(previous); err != nil {
		t.Fatal(err)
	}
	if got, err := client.Settings(); err != nil || got.PathManager != mptcp.KernelPM {
		t.Errorf("settings %+v, error %v; want the path manager put back", got, err)
	}
	if err := client.SetPM("nobody"); err == nil {
		t.Error("a path manager that does not exist was set")
	}
}

func TestSwitchedOff(t *testing.T) {
	n := threehosts.New(t)
	client := open(t, n.Client)
	n.Client.Sysctl(t, "net/mptcp/enabled", "0")
	_, err := client.AcquireUserspacePM()
	var unsupported *mptcp.UnsupportedError
	if !errors.Is(err, mptcp.ErrUnsupported) || !errors.As(err, &unsupported) || unsupported.Feature != mptcp.Enabled.Name {
		t.Errorf("error %v, want %q to be unsupported", err, mptcp.Enabled.Name)
	}
	n.Client.Do(t, func() error {
		for _, f := range mptcp.Probe() {
			missing := f.Feature == mptcp.Enabled || f.Feature == mptcp.IPv6
			if errors.Is(f.Err, mptcp.ErrUnsupported) != missing {
				t.Errorf("%s: %v", f.Name, f.Err)
			}
		}
		return nil
	})
}

// TestProbe fails on a kernel that lacks what dcol needs: the tests of this
// package would otherwise say nothing.
func TestProbe(t *testing.T) {
	n := threehosts.New(t)
	n.Client.Do(t, func() error {
		for _, f := range mptcp.Probe() {
			if f.Err != nil {
				t.Errorf("%s: %v", f.Name, f.Err)
			}
		}
		return nil
	})
}
