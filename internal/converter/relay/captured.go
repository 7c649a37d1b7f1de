package relay

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/detour-collective/dcol/internal/converter/capture"
)

// captured holds what makes the kernel lead programs' connections to the relay.
type captured struct {
	// by has a Capture for each cgroup that a State has named. They stay until the process ends, because getpeername()
	// needs them on connections that were led here.
	by      map[string]*capture.Capture
	problem string // why the present State's cgroup has none
}

// sourcesName returns the name under which a Capture's sources are handed over.
func sourcesName(cgroup string) string { return handed("sources", cgroup) }

// capture makes the kernel lead programs' connections to the listeners of x. If want is nil, it leads none.
func (r *relay) capture(x *user, want *Capture) {
	for cgroup, c := range r.captured.by {
		if want == nil || want.Cgroup != cgroup {
			c.Stop()
		}
	}
	if want == nil {
		r.captured.problem = ""
		return
	}
	c := r.captured.by[want.Cgroup]
	if c == nil {
		var err error
		if c, err = r.openCapture(want.Cgroup); err != nil {
			if err.Error() != r.captured.problem {
				r.log.Error("programs' connections are not led to the relay", "err", err)
			}
			r.captured.problem = err.Error()
			return
		}
		r.captured.by[want.Cgroup], r.captured.problem = c, ""
		r.log.Info("programs' connections are led to the relay", "cgroup", want.Cgroup)
	}
	x.mu.Lock()
	x.captured = c
	at4, at6 := x.at4, x.at6
	x.mu.Unlock()
	c.Lead(capture.Want{At4: at4, At6: at6, Table: x.table, Spare: want.Exclude, Agent: want.Agent})
}

func (r *relay) openCapture(cgroup string) (*capture.Capture, error) {
	var sources *ebpf.Map
	if l := r.inherited[sourcesName(cgroup)]; l != nil {
		delete(r.inherited, sourcesName(cgroup))
		var err error
		if sources, err = ebpf.NewMapFromFD(l.fd); err != nil {
			return nil, fmt.Errorf("take over which connections come from where: %w", err)
		}
		defer sources.Close()
	}
	c, err := capture.Open(cgroup, sources, r.log)
	if err != nil {
		return nil, err
	}
	r.group.Go(func() error {
		c.Run(r.capturing)
		return nil
	})
	return c, nil
}

// release stops leading programs' connections to the relay, and learning from them.
func (r *relay) release() {
	for _, c := range r.captured.by {
		c.Stop()
	}
	r.deafen()
}

// endCaptures closes all Captures. It is called after the last connection.
func (r *relay) endCaptures() error {
	var errs []error
	for _, c := range r.captured.by {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// captureProblem returns the reason why connections that should be led to the relay are not; empty: there is no problem.
func (r *relay) captureProblem() string {
	problem := r.captured.problem
	for _, c := range r.captured.by {
		if problem == "" {
			problem = c.Problem()
		}
	}
	return problem
}
