package inband

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestTwoCapabilitiesAreEnough(t *testing.T) {
	netnstest.New(t).Must(t, func() (err error) {
		defer func() {
			var rejected *ebpf.VerifierError
			if errors.As(err, &rejected) {
				t.Log(strings.Join(rejected.Log[max(0, len(rejected.Log)-30):], "\n"))
			}
		}()
		if err := netnstest.LimitRights(unix.CAP_BPF, unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		s, err := OpenSender(SenderConfig{})
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.Attach([]int{1}); err != nil {
			return err
		}
		// The second finds the filters of the first, and may not take them over.
		for range 2 {
			r, err := OpenReceiver(testMask)
			if err != nil {
				return err
			}
			if err := errors.Join(r.Attach([]int{1}), r.Close()); err != nil {
				return err
			}
		}
		return CleanUp()
	})
}

func TestLackingCapabilityIsNamed(t *testing.T) {
	for _, c := range []struct {
		has  int
		want string
	}{
		{unix.CAP_BPF, "CAP_NET_ADMIN"},
		{unix.CAP_NET_ADMIN, "CAP_BPF"},
	} {
		netnstest.New(t).Must(t, func() error {
			if err := netnstest.LimitRights(c.has); err != nil {
				return err
			}
			_, sender := OpenSender(SenderConfig{})
			_, receiver := OpenReceiver(testMask)
			for _, err := range []error{sender, receiver} {
				var unavailable *UnavailableError
				if !errors.As(err, &unavailable) || !strings.Contains(unavailable.Fix, c.want) {
					t.Errorf("without %s: %v", c.want, err)
				}
			}
			return nil
		})
	}
}
