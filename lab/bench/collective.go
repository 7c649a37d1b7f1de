package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/crowd"
	"github.com/detour-collective/dcol/lab/remote"
	"github.com/detour-collective/dcol/lab/testbed"
)

// DefaultMembers is the size of the collective in the benchmark.
const DefaultMembers = 10_000

const (
	hubHost   = "hub"
	crowdHost = "crowd"
	// expelWithin is the target for 99 % of the members to learn of an expulsion.
	expelWithin = 2 * time.Second
)

// crowdPlan sets the amount of work.
type crowdPlan struct {
	members  int
	late     int // of them, who join while all others listen
	sample   int // of them, who hold a copy of the directory
	parallel int
	changes  int
	renewals int
	expelled int
	idle     time.Duration
	rest     time.Duration // between expulsions
}

// collectives measures one coordinator with thousands of members, each with its own connection.
func collectives(ctx context.Context, o Options) ([]Measurement, error) {
	r, err := runCrowd(ctx, o, crowdPlan{
		members: o.Members, late: min(100, o.Members/10), sample: 8, parallel: 32,
		changes: 10, renewals: min(500, o.Members/2), expelled: 5, idle: 30 * time.Second, rest: 8 * time.Second,
	})
	return r.figures(), err
}

// crowdRun has the measurements, in the order in which they were made.
type crowdRun struct {
	plan        crowdPlan
	load        string   // of the machine before
	done        []string // steps
	empty       crowdMemory
	join        phase
	registered  crowdMemory // all but the late members have joined, none is connected
	connect     phase
	idle        phase
	late        phase
	lateHighest int64 // bytes, resident
	full        crowdMemory
	changes     []crowd.Spread
	change      phase
	renew       phase
	expelled    []crowd.Expelled
	reached     []crowd.Reached
	expel       phase
	hub         crowd.HubState
	members     crowd.MembersState
}

// crowdMemory is the memory of the coordinator's process, in bytes.
type crowdMemory struct{ resident, heap int64 }

// phase has the measurements of one part of the run.
type phase struct {
	crowd.Work
	cpu  time.Duration // the coordinator's
	sent int64         // bytes on the wire, by the coordinator's host
	took time.Duration
}

// runCrowd makes all measurements once. If it fails, it returns those made until then.
func runCrowd(ctx context.Context, o Options, plan crowdPlan) (r *crowdRun, err error) {
	r = &crowdRun{plan: plan, load: loadAverage()}
	c, err := openCrowd(ctx, o, plan)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	for _, step := range []struct {
		what string
		do   func(context.Context, *crowdRun) error
	}{
		{"join", c.join}, {"connect", c.connect}, {"idle", c.idle}, {"late", c.late},
		{"change", c.change}, {"renew", c.renew}, {"expel", c.expel}, {"look", c.look},
	} {
		fmt.Fprintf(o.Stderr, "bench collective: %s\n", step.what)
		if err := c.hub.Call("Profile", filepath.Join(o.Out, "coordinator-"+step.what+".pprof"), nil); err != nil {
			return nil, err
		}
		if err := step.do(ctx, r); err != nil {
			return r, fmt.Errorf("%s: %w", step.what, err)
		}
		r.done = append(r.done, step.what)
	}
	return r, c.hub.Call("Profile", "", nil)
}

// crowdNetwork has two hosts, each with one of the processes.
type crowdNetwork struct {
	*network
	plan         crowdPlan
	dir          string // the coordinator's
	process      *crew.Process
	hub, members *remote.Client
}

func openCrowd(ctx context.Context, o Options, plan crowdPlan) (c *crowdNetwork, err error) {
	spec := testbed.Spec{
		Hosts: []testbed.HostSpec{{Name: hubHost}, {Name: crowdHost}}, Seed: 1, Backend: testbed.BackendVeth,
		Links: []testbed.LinkSpec{{Name: "link", A: hubHost, B: crowdHost}},
	}
	s, err := openNetwork(ctx, o, spec, nil)
	if err != nil {
		return nil, err
	}
	c = &crowdNetwork{network: s, plan: plan}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.dir, err = os.MkdirTemp(o.Out, "collective-"); err != nil {
		return c, fmt.Errorf("make the coordinator's folder: %w", err)
	}
	// A connection that has ended keeps its port for a minute.
	if err := s.Host(crowdHost).Sysctl("net.ipv4.ip_local_port_range", "1024 65535"); err != nil {
		return c, err
	}
	c.process, c.hub, err = c.startRemote(ctx, hubHost, crowd.HubPart, &crowd.Hub{Dir: c.dir, Address: s.Host(hubHost).Addr4().String()})
	if err != nil {
		return c, err
	}
	_, c.members, err = c.startRemote(ctx, crowdHost, crowd.MembersPart, &crowd.Members{
		Dir: "/run/crowd", Most: plan.members, Sample: plan.sample, Parallel: plan.parallel,
	})
	return c, err
}

// startRemote starts one of the processes. It returns an error if the process cannot serve all members.
func (c *crowdNetwork) startRemote(ctx context.Context, host, part string, configuration any) (*crew.Process, *remote.Client, error) {
	p, client, err := c.StartRemote(ctx, host, part, c.Part(part, configuration)...)
	if err != nil {
		return nil, nil, err
	}
	var most int
	if err := client.Call("Capacity", struct{}{}, &most); err != nil {
		return nil, nil, p.Trouble(err)
	}
	if c.plan.members > most {
		return nil, nil, fmt.Errorf("a process may open files for %d members here, not for %d: raise the hard limit (ulimit -Hn), or take fewer (--members)",
			most, c.plan.members)
	}
	return p, client, nil
}

func (c *crowdNetwork) close() error {
	err := c.Close()
	if c.dir != "" {
		err = errors.Join(err, os.RemoveAll(c.dir))
	}
	return err
}

// measure runs do and records its cost for the coordinator's host.
func (c *crowdNetwork) measure(p *phase, do func() error) error {
	cpu, sent, began := time.Duration(0), int64(0), time.Now()
	for _, sign := range []int64{-1, 1} {
		now, err := c.process.CPU()
		if err != nil {
			return err
		}
		bytes, err := c.sent()
		if err != nil {
			return err
		}
		cpu, sent = cpu+time.Duration(sign)*now, sent+sign*bytes
		if sign < 0 {
			if err := do(); err != nil {
				return err
			}
		}
	}
	p.cpu, p.sent, p.took = cpu, sent, time.Since(began)
	return nil
}

// sent returns the number of bytes that the coordinator's host has sent.
func (c *crowdNetwork) sent() (int64, error) {
	link, err := c.Host(hubHost).Link("link")
	if err != nil {
		return 0, fmt.Errorf("count what is sent: %w", err)
	}
	return int64(link.Attrs().Statistics.TxBytes), nil
}

// memory returns the memory of the coordinator's process after it has returned free memory to the system.
func (c *crowdNetwork) memory() (m crowdMemory, err error) {
	var heap crowd.Memory
	if err := c.hub.Call("Settle", struct{}{}, &heap); err != nil {
		return m, err
	}
	resident, err := c.process.Memory()
	return crowdMemory{resident.Now, heap.Heap}, err
}

// loadAverage returns the machine's load average, which helps to judge figures about time.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
