package sourceports

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// Probes of different servers take turns, because they would disturb each other. A search that does not get its turn in time
// ends.
func TestProbesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := 0
		s := NewSearcher(nil, func(ctx context.Context, _ netip.AddrPort, paths, each int) ([][]uint16, error) {
			if running++; running > 1 {
				t.Error("two searches at a time")
			}
			defer func() { running-- }()
			if paths != 3 && paths != detourPaths || each != probedEach {
				t.Errorf("%d paths, %d ports on each are searched", paths, each)
			}
			select {
			case <-time.After(probeTime * 2 / 3):
				return [][]uint16{{1}, {2}}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		ended := make(chan error, 2)
		go func() {
			ports, err := s.Search(t.Context(), Search{Server: server443, Paths: 3}, netip.Addr{})
			if len(ports) != 2 {
				t.Errorf("ports %v", ports)
			}
			ended <- err
		}()
		synctest.Wait()
		go func() {
			_, err := s.FirstLeg(t.Context(), server443)
			ended <- err
		}()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the second search waits longer than it may: %v", err)
		}
	})
}
