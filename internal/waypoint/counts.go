package waypoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/flows"
)

// The eBPF program counts the bytes that the fast path carries. After the agent's end, a later process can read
// the program's maps only with CAP_SYS_ADMIN, which the packaged service lacks. An agent that stops in order
// therefore leaves the counts of open connections to the next agent in a file.

// carried is a connection in the file. It is identified by both directions, because another connection may have
// the same addresses and ports at the client by now.
type carried struct {
	Flow   forward.Flow
	Passed forward.Passed
}

// counts has the bytes of connections that took the fast path of earlier agents.
type counts struct {
	// saved has the counts that the last agent wrote when it stopped; nil: it was killed.
	saved map[forward.Flow]forward.Passed
	// left has the counts that the kernel still has from an agent that was killed; none without CAP_SYS_ADMIN.
	left map[forward.Tuple]uint64
}

// of returns the bytes of a connection that took the fast path. It reports false if they are not known.
func (c counts) of(f forward.Flow) (passed forward.Passed, known bool) {
	if c.saved != nil {
		return c.saved[f], true
	}
	origin, known := c.left[f.Origin]
	return forward.Passed{Origin: origin, Reply: c.left[f.Reply]}, known
}

// adopt lists the connections that are open already. The subscription to events is older, so events that
// happen meanwhile arrive afterwards.
func (c *connections) adopt(path string) error {
	before := c.countedBefore(path)
	unknown := 0
	err := c.list(func(f netstate.Flow) {
		e, ok := c.flows.Open(attribution.FlowFound, f, time.Now())
		if ok {
			c.record.Write(e)
			passed, known := before.of(flows.Key(f))
			c.flows.Carried(f.Origin, passed)
			if _, kind, _ := c.marks.OfMark(f.Mark); !known && f.Established && flows.MayBeFast(kind) {
				unknown++
			}
		}
		c.watch(f)
	})
	if err != nil {
		return err
	}
	if unknown > 0 {
		c.log.Warn("the previous agent was killed: bytes that the fast path carried of some connections that "+
			"are still open may be missing in the log and in the status", "connections", unknown)
	}
	if err := forgetCounts(path); err != nil {
		c.log.Warn("the bytes that an earlier agent counted may be counted again after a crash", "err", err)
	}
	return nil
}

// countedBefore reads the counts of earlier agents. The file stays until they are taken over.
func (c *connections) countedBefore(path string) (before counts) {
	if c.fast != nil {
		before.left = c.fast.Left()
	}
	saved, err := readCounts(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.log.Warn("bytes that an earlier agent counted cannot be read", "err", err)
	}
	before.saved = saved
	return before
}

// saveCounts gives all connections back to netfilter, which counts from here on, and saves the counts of the
// fast path. It must be called last.
func (c *connections) saveCounts(path string) error {
	var errs []error
	list := []carried{}
	for _, f := range c.flows.All() {
		errs = append(errs, c.leave(f.Origin))
		if passed := c.flows.Passed(f.Origin, c.passed); passed != (forward.Passed{}) {
			list = append(list, carried{flows.Key(f), passed})
		}
	}
	return errors.Join(append(errs, writeCounts(path, list))...)
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

func writeCounts(path string, list []carried) error {
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

// forgetCounts removes the file, if it exists.
func forgetCounts(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget what the fast path has carried: %w", err)
	}
	return nil
}
