package emulink

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
)

// stageName is the argv[0] under which our executable runs as the emulator.
const stageName = "dcol-lab-wire"

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

// serve answers requests until in ends.
func serve(in io.Reader, out io.Writer) error {
	settle()
	requests, responses := json.NewDecoder(in), json.NewEncoder(out)
	var l *loop
	for {
		var req request
		err := requests.Decode(&req)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		var resp response
		switch {
		case l == nil && req.Start != nil:
			l, resp, err = start(*req.Start)
		case l == nil:
			err = errors.New("the first request must be to start")
		default:
			resp, err = l.serve(req)
		}
		if err != nil {
			resp = response{Error: err.Error()}
		}
		if err := responses.Encode(resp); err != nil {
			return fmt.Errorf("write response: %w", err)
		}
	}
}

func start(req startRequest) (*loop, response, error) {
	var ports []port
	for i, link := range req.Links {
		a := firstDevice + 2*i
		b := a + 1
		ports = append(ports,
			port{pipe: newPipe(link.AtoB, link.MTU, req.Seed, uint64(2*i)), in: a, out: b},
			port{pipe: newPipe(link.BtoA, link.MTU, req.Seed, uint64(2*i+1)), in: b, out: a})
	}
	l, err := newLoop(ports)
	if err != nil {
		return nil, response{}, err
	}
	scheduling := make(chan string)
	go func() {
		runtime.LockOSThread()
		scheduling <- realtime()
		l.run()
	}()
	return l, response{Scheduling: <-scheduling}, nil
}

// serve answers a request to a running loop.
func (l *loop) serve(req request) (resp response, err error) {
	switch {
	case req.Set != nil:
		var ab, ba *port
		if ab, ba, err = l.link(req.Set.Link); err != nil {
			return resp, err
		}
		return resp, l.do(func(now int64) {
			ab.set(now, req.Set.AtoB)
			ba.set(now, req.Set.BtoA)
		})
	case req.Down != nil:
		var ab, ba *port
		if ab, ba, err = l.link(req.Down.Link); err != nil {
			return resp, err
		}
		return resp, l.do(func(now int64) {
			ab.setDown(now, req.Down.Down)
			ba.setDown(now, req.Down.Down)
		})
	case req.Stats != nil:
		var ab, ba *port
		if ab, ba, err = l.link(*req.Stats); err != nil {
			return resp, err
		}
		err = l.do(func(int64) { resp.AtoB, resp.BtoA = ab.snapshot(), ba.snapshot() })
		return resp, err
	case req.Reset:
		return resp, l.do(func(int64) {
			for _, p := range l.ports {
				p.reset()
			}
		})
	}
	return resp, errors.New("the request names nothing to do")
}

func (l *loop) link(i int) (ab, ba *port, err error) {
	if i < 0 || 2*i >= len(l.ports) {
		return nil, nil, fmt.Errorf("there is no link %d", i)
	}
	return &l.ports[2*i], &l.ports[2*i+1], nil
}
