package emulink

import (
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/detour-collective/dcol/lab/remote"
)

// stageName is the argv[0] under which our executable runs as the emulator.
const stageName = "dcol-lab-emulator"

// firstDevice is the first inherited file after the standard ones.
const firstDevice = 3

// Stage returns at once in an ordinary process. In an emulator process it runs the emulator and never
// returns.
func Stage() {
	if len(os.Args) == 0 || os.Args[0] != stageName {
		return
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve carries packets and answers calls until in ends.
func serve(in io.Reader, out io.Writer) error {
	settle()
	return remote.Serve(&service{}, in, out)
}

// service has the methods that an Emulator calls through net/rpc. The first call must be Start.
type service struct{ loop *loop }

// StartRequest is the argument of Start.
type StartRequest struct {
	Seed  uint64
	Links []LinkSetup
}

// LinkSetup is a link whose devices A and B are the next two inherited files.
type LinkSetup struct {
	AtoB, BtoA Params
	MTU        int
	EndA, EndB End
	Radio      Radio
}

// SetRequest is the argument of Set.
type SetRequest struct {
	Link       int
	AtoB, BtoA Params
}

// DownRequest is the argument of Down.
type DownRequest struct {
	Link int
	Down bool
}

// Start starts the loop. Its reply describes the scheduling of the loop's thread.
func (s *service) Start(req StartRequest, scheduling *string) error {
	var ports []port
	stations := map[string]*station{}
	at := func(e End) *station {
		if e.Host == "" {
			return nil
		}
		if stations[e.Host] == nil {
			stations[e.Host] = &station{}
		}
		return stations[e.Host]
	}
	for i, link := range req.Links {
		a := firstDevice + 2*i
		b := a + 1
		ports = append(ports,
			port{pipe: newPipe(link.AtoB, link.MTU, req.Seed, uint64(2*i)), in: a, out: b,
				near: at(link.EndA), far: at(link.EndB), nearHost: link.EndA.Host, farAddr: link.EndB.Addresses},
			port{pipe: newPipe(link.BtoA, link.MTU, req.Seed, uint64(2*i+1)), in: b, out: a,
				near: at(link.EndB), far: at(link.EndA), nearHost: link.EndB.Host, farAddr: link.EndA.Addresses})
		if link.Radio != (Radio{}) {
			r := &radio{Radio: link.Radio}
			ports[2*i].radio, ports[2*i+1].radio = r, r
		}
	}
	l, err := newLoop(ports)
	if err != nil {
		return err
	}
	s.loop = l
	scheduled := make(chan string)
	go func() {
		runtime.LockOSThread()
		scheduled <- realtime()
		l.run()
	}()
	*scheduling = <-scheduled
	return nil
}

// Set changes a link's parameters.
func (s *service) Set(req SetRequest, _ *struct{}) error {
	return s.onLink(req.Link, func(now int64, ab, ba *port) {
		ab.set(now, req.AtoB)
		ba.set(now, req.BtoA)
	})
}

// Down takes a link down or up.
func (s *service) Down(req DownRequest, _ *struct{}) error {
	return s.onLink(req.Link, func(now int64, ab, ba *port) {
		ab.setDown(now, req.Down)
		ba.setDown(now, req.Down)
	})
}

// Stats replies with a link's counters.
func (s *service) Stats(link int, both *[2]Stats) error {
	return s.onLink(link, func(now int64, ab, ba *port) { *both = [2]Stats{ab.snapshot(now), ba.snapshot(now)} })
}

// Reset sets all counters to zero.
func (s *service) Reset(_ struct{}, _ *struct{}) error {
	return s.loop.do(func(now int64) {
		for _, p := range s.loop.ports {
			p.reset(now)
		}
	})
}

// onLink calls act with the two directions of a link, at a moment when no packet is being handled.
func (s *service) onLink(i int, act func(now int64, ab, ba *port)) error {
	if i < 0 || 2*i >= len(s.loop.ports) {
		return fmt.Errorf("there is no link %d", i)
	}
	return s.loop.do(func(now int64) { act(now, &s.loop.ports[2*i], &s.loop.ports[2*i+1]) })
}
