package scenario

import (
	"fmt"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/units"
)

const (
	maxCount = 10000 // files in a run
	maxTurns = 1e6   // messages or requests in a run
	// minInterval is the shortest interval that timers on a busy machine keep.
	minInterval = units.Duration(time.Millisecond)
	maxMessage  = 1 << 20 // bytes
)

// workload checks the workload. A scenario without procedures needs none: it is a network for `dcol-lab shell`.
func (c *checker) workload() {
	w := c.Workload
	if !oneOf(c.problems, "workload.kind", w.Kind, Upload, Download, HTTP, Stream, Requests, Command) || len(c.Procedures) == 0 {
		return
	}
	okClient := c.known("workload.client", w.Client, "host", c.hostNames())
	okServer := c.known("workload.server", w.Server, "host", c.hostNames())
	if okClient && okServer {
		if w.Client == w.Server {
			c.report("workload.server", "client and server are both %q; use two hosts", w.Client)
		}
		reached := c.reach(w.Client, func(string) bool { return true })
		for _, name := range slices.Concat([]string{w.Server}, c.WithRole(RoleWaypoint), c.WithRole(RoleConverter)) {
			if !reached[name] {
				c.report("link", "no chain of links leads from %q to %q; add one, and give the hosts between the role router",
					w.Client, name)
			}
		}
		c.behindNAT("workload.server", w.Server, w.Client)
		client, _ := c.Host(w.Client)
		server, _ := c.Host(w.Server)
		c.families(client, server)
	}
	if w.Port < 0 || w.Port > 65535 || w.Port == 0 && w.Kind == Command {
		c.report("workload.port", "%d is not a port; use 1 to 65535", w.Port)
	}
	c.commands(w)
	c.applies("workload", w)
	if !c.traffic("workload", w) {
		return // further variants have the same problem
	}
	for i, v := range c.Variants {
		if v.Workload != (WorkloadChange{}) {
			path := fmt.Sprintf("variant[%d].workload", i)
			if w.IsTransfer() && v.Workload.Direction != "" && !oneOf(c.problems, path+".direction", v.Workload.Direction, Upload, Download) {
				continue
			}
			c.applies(path, v.Workload.Over(Workload{Kind: w.Kind}))
			c.traffic(path, c.WorkloadIn(v))
		}
	}
}

func (c *checker) commands(w Workload) {
	if w.Kind == Command && len(w.ClientCommand) == 0 {
		c.report("workload.client_command", `is missing; give the program and its arguments, such as ["curl", "http://{address}:{port}/"]`)
	}
	if w.Kind == Command && len(w.ServerCommand) == 0 {
		c.report("workload.server_command", "is missing; give the program and its arguments")
	}
}

// applies reports keys that the kind of workload does not use.
func (c *checker) applies(path string, w Workload) {
	for _, k := range []struct {
		key string
		set bool
		of  []WorkloadKind
	}{
		{"duration", w.Duration != 0, []WorkloadKind{Upload, Download, Stream, Requests, Command}},
		{"size", w.Size != 0, []WorkloadKind{HTTP, Requests}},
		{"count", w.Count != 0, []WorkloadKind{HTTP}},
		{"rate", w.Rate != 0, []WorkloadKind{Stream}},
		{"interval", w.Interval != 0, []WorkloadKind{Stream, Requests}},
		{"direction", w.Direction != "", []WorkloadKind{Stream}},
		{"client_command", w.ClientCommand != nil, []WorkloadKind{Command}},
		{"server_command", w.ServerCommand != nil, []WorkloadKind{Command}},
	} {
		if k.set && !slices.Contains(k.of, w.Kind) {
			c.report(path+"."+k.key, "has no effect on the workload %q; remove it", w.Kind)
		}
	}
}

// traffic checks the numbers of a variant's workload.
func (c *checker) traffic(path string, w Workload) bool {
	sound := true
	problem := func(key, format string, args ...any) {
		sound = false
		c.report(path+"."+key, format, args...)
	}
	if w.Duration > 0 && w.Skip >= w.Duration {
		problem("skip", "%v leaves nothing of the duration, %v, to measure", w.Skip, w.Duration)
	}
	switch w.Kind {
	case Upload, Download:
		wholeSeconds("duration", w.Duration, problem)
		wholeSeconds("skip", w.Skip, problem)
	case HTTP:
		if w.Count < 1 || w.Count > maxCount {
			problem("count", "%d is not a number from 1 to %d", w.Count, maxCount)
		}
		if w.Count > 1 && w.Skip > 0 {
			problem("skip", "cannot be where %d files are fetched: each counts as a whole; remove one of the two", w.Count)
		}
	case Stream:
		if !oneOf(c.problems, path+".direction", w.Direction, Upload, Download) {
			sound = false
		}
		turns(w, problem)
		if size := w.MessageSize(); sound && (size < 1 || size > maxMessage) {
			problem("rate", "%v every %v makes messages of %d bytes; use 1 to %d", w.Rate, w.Interval, size, maxMessage)
		}
	case Requests:
		turns(w, problem)
	}
	return sound
}

func wholeSeconds(key string, d units.Duration, problem func(key, format string, args ...any)) {
	if d.Std()%time.Second != 0 {
		problem(key, "%v is not a whole number of seconds, which is all iperf3 knows", d)
	}
}

// turns checks the number of messages or requests.
func turns(w Workload, problem func(key, format string, args ...any)) {
	switch {
	case w.Interval < minInterval:
		problem("interval", "%v is too short to be kept; use at least %v", w.Interval, minInterval)
	case w.Turns() < 1:
		problem("interval", "%v is longer than the duration, %v", w.Interval, w.Duration)
	case w.Turns() > maxTurns:
		problem("interval", "%v makes %d in the duration, %v; use at most %d", w.Interval, w.Turns(), w.Duration, int(maxTurns))
	}
}

// shortest returns the shortest duration of the workload in any variant, or 0 if it has no fixed duration.
func (c *checker) shortest() units.Duration {
	least := c.Workload.Duration
	for _, v := range c.Variants {
		least = min(least, c.WorkloadIn(v).Duration)
	}
	return least
}
