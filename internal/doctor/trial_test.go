package doctor

import (
	"errors"
	"os"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// A running agent has filters and interfaces in the host's namespace. A trial there would replace them.
func TestThrowawayIsNobodysNamespace(t *testing.T) {
	netnstest.New(t) // says what the host lacks for namespaces
	namespace := func() string {
		name, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Error(err)
		}
		return name
	}
	ours := namespace()
	for range 3 {
		if err := inThrowaway(func() error {
			if namespace() == ours {
				return errors.New("it is ours")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if now := namespace(); now != ours {
			t.Fatalf("we are in %s instead of %s after a trial", now, ours)
		}
	}
}

// With the rights to create a namespace, every trial has a result, and dcol's programs and interfaces work in it.
func TestTrials(t *testing.T) {
	netnstest.New(t)
	for name, try := range map[string]func() error{
		"in-band sender":   func() error { return tryInBandSender("") },
		"in-band receiver": tryInBandReceiver,
		"tunnel routing":   tryTunnelRouting,
		"wireguard": func() error {
			kind, err := TryWireGuard()
			if err == nil && kind != "kernel" && kind != "userspace" {
				return errors.New("what is " + kind)
			}
			return err
		},
	} {
		if err := try(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTrialTellsWhichCgroupItCannotUse(t *testing.T) {
	netnstest.New(t)
	err := tryInBandSender(t.TempDir())
	var refused *inband.UnavailableError
	if !errors.As(err, &refused) || refused.Fix == "" {
		t.Errorf("a folder that is no cgroup: %v", err)
	}
}
