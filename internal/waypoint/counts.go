package waypoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

// The bytes that the fast path has carried of open connections are in no place that outlives the agent: the
// program's maps can be read by a later process only if that has CAP_SYS_ADMIN, which the packaged service
// lacks. An agent that stops in order therefore leaves the counts to the next one in a file.

// carried is a connection in that file. Both directions identify it: its addresses and ports as the client
// sees them may be those of another connection by now.
type carried struct {
	Flow   forward.Flow
	Passed forward.Passed
}

// counts is what earlier agents carried of connections.
type counts struct {
	// saved is what the last agent wrote when it stopped, and nil if it wrote nothing: it was killed.
	saved map[forward.Flow]forward.Passed
	// left is what the kernel tells of an agent that was killed; nothing without CAP_SYS_ADMIN.
	left map[forward.Tuple]uint64
}

// of returns what was carried of a connection, and whether that is known.
func (c counts) of(f forward.Flow) (passed forward.Passed, known bool) {
	if c.saved != nil {
		return c.saved[f], true
	}
	origin, known := c.left[f.Origin]
	return forward.Passed{Origin: origin, Reply: c.left[f.Reply]}, known
}

// adoptFlows finds the flows that are open already. The subscription is older, so what happens
// meanwhile arrives afterwards.
func (w *Waypoint) adoptFlows() error {
	before := w.countedBefore()
	unknown := 0
	err := w.listFlows(func(f netstate.Flow) {
		w.openFlow(attribution.FlowFound, f)
		if l, ok := w.live[f.Origin]; ok {
			var known bool
			if l.passed, known = before.of(fastFlowOf(f)); !known && f.Established && mayBeFast(l.kind) {
				unknown++
			}
			w.live[f.Origin] = l
		}
		w.watch(f)
	})
	if err != nil {
		return err
	}
	if unknown > 0 {
		w.log.Warn("the agent before this one did not stop in order: what the fast path carried of some connections that "+
			"are still open may be missing from their bytes in the log and in the status", "connections", unknown)
	}
	if err := forgetCounts(w.config.Counts); err != nil {
		w.log.Warn("the bytes that an earlier agent counted may be counted again after a crash", "err", err)
	}
	return nil
}

// countedBefore reads what earlier agents left. The file stays until the counts are taken over.
func (w *Waypoint) countedBefore() (c counts) {
	if w.kernel.fast != nil {
		c.left = w.kernel.fast.Left()
	}
	saved, err := readCounts(w.config.Counts)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.log.Warn("what an earlier agent counted cannot be read", "err", err)
	}
	c.saved = saved
	return c
}

// closeCounts leaves the connections to netfilter, which counts from here on, and saves what was carried.
// Nothing else runs any more.
func (w *Waypoint) closeCounts() error {
	var errs []error
	list := []carried{}
	for origin, l := range w.live {
		errs = append(errs, w.leaveFastPath(origin))
		if passed := w.passedFast(origin); passed != (forward.Passed{}) {
			list = append(list, carried{fastFlowOf(l.flow), passed})
		}
	}
	return errors.Join(append(errs, saveCounts(w.config.Counts, list))...)
}

func readCounts(path string) (map[forward.Flow]forward.Passed, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read what the fast path has carried: %w", err)
	}
	var list []carried
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("read what the fast path has carried: %s: %w", path, err)
	}
	saved := make(map[forward.Flow]forward.Passed, len(list))
	for _, c := range list {
		saved[c.Flow] = c.Passed
	}
	return saved, nil
}

func saveCounts(path string, list []carried) error {
	data, err := json.Marshal(list)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = durable.Replace(path, append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("save what the fast path has carried: %w", err)
	}
	return nil
}

// forgetCounts removes the file; doing it again is harmless.
func forgetCounts(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget what the fast path has carried: %w", err)
	}
	return nil
}
