package waypoint

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/flows"
)

// The counts of an earlier agent are kept, for connections that still exist. Where they are lost, the agent
// reports it.
func TestFastPathIsAdopted(t *testing.T) {
	passed := forward.Passed{Origin: 700, Reply: 70}
	kill := func(t *testing.T, h *fakeHost) { // so that it saves nothing
		if err := os.Remove(h.config.Counts); err != nil {
			t.Error(err)
		}
	}
	for name, c := range map[string]struct {
		between func(*testing.T, *fakeHost)
		left    uint64 // the kernel's counts of the earlier agent, from the client; 0: none
		other   bool   // another connection, with the same client addresses and ports
		ended   bool   // it had left the fast path
		want    forward.Passed
		said    string
	}{
		"stopped in order":                     {want: passed},
		"stopped in order, off the fast path":  {ended: true, want: passed},
		"stopped in order, another connection": {other: true},
		"killed":                               {between: kill, left: 650, want: forward.Passed{Origin: 650, Reply: 70}},
		"killed, and the kernel does not tell": {between: kill, said: "the previous agent was killed"},
		"the file is damaged": {between: func(t *testing.T, h *fakeHost) {
			if err := os.WriteFile(h.config.Counts, []byte("[{"), 0o600); err != nil {
				t.Error(err)
			}
		}, said: "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			runFast(t, func(t *testing.T, h *fakeHost) {
				w := h.start(t)
				f := h.establish(t, w, wire.Mapped)
				h.hasten(f)
				h.fast.carry(f, passed, c.ended)
				time.Sleep(12 * time.Second) // until it is looked at
				synctest.Wait()
				if s, err := w.Snapshot(); err != nil || (*s.Fast == 0) != c.ended {
					t.Errorf("snapshot %+v, %v", s, err)
				}
				mustClose(t, w)
				if len(h.fast.flows) != 0 {
					t.Errorf("netfilter does not count what comes now: %+v", h.fast.flows)
				}
				if c.between != nil {
					c.between(t, h)
				}
				if c.left > 0 {
					h.fast.left = map[forward.Tuple]uint64{forward.Tuple(f.Origin): c.left, forward.Tuple(f.Reply): 70, {}: 7}
				}
				if c.other {
					f.Reply.Dst = netip.AddrPortFrom(ownAddr, 61001)
				}
				h.setFlows(f)
				var said bytes.Buffer
				h.log = slog.NewTextHandler(&said, nil)
				w = h.start(t)
				defer mustClose(t, w)
				if got := h.fast.flows[flows.Key(f)].Passed; got != c.want {
					t.Errorf("goes on from %+v, want %+v", got, c.want)
				}
				if text := said.String(); c.said == "" && text != "" || !strings.Contains(text, c.said) {
					t.Errorf("said %q, want %q", text, c.said)
				}
				if _, err := os.Stat(h.config.Counts); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the file would be believed again after a crash: %v", err)
				}
			})
		})
	}
}
