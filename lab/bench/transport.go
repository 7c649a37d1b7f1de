package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/option"
	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	transportRepetitions = 1
	// transportFull is the least number of repetitions with which each run takes as long as in the publications.
	transportFull = 10
	// transportAbreast is the number of networks with slow links that are measured at the same time, and fastAbreast that of
	// networks with a link of 80 Mbit/s.
	transportAbreast, fastAbreast = 5, 2
	transportLink                 = "line"
)

// transport measures the effects of dcol on TCP, as the experiments of Tran's thesis (2019, chapter 5) and of NorNet
// (2016) did: the cost of options, round trips by congestion control, pages with larger initial windows, fairness, and
// requests beside a path with a long round trip.
func transport(ctx context.Context, o Options) (found []Measurement, err error) {
	repetitions := transportRepetitions
	if o.Repetitions > 0 {
		repetitions = o.Repetitions
	}
	wanted, err := regexp.Compile(o.Places)
	if err != nil {
		return nil, fmt.Errorf("the parts to measure: %w", err)
	}
	measured := false
	for _, part := range []struct {
		name    string
		measure func(context.Context, Options, int) ([]Measurement, error)
	}{
		{"cost", optionCost},
		{"cost, each segment", segmentCost},
		{"rtt", roundTrips},
		{"pages", pages},
		{"fairness, two subflows", fairness},
		{"fairness, more subflows", manySubflows},
		{"mixed", mixedPaths},
		{"disjoint", disjointPaths},
		{"fast", fastLink},
		{"requests", farPath},
	} {
		if !wanted.MatchString(part.name) {
			continue
		}
		measured = true
		some, err := part.measure(ctx, o, repetitions)
		found = append(found, some...)
		if err != nil {
			return found, err
		}
	}
	if !measured {
		return nil, fmt.Errorf("no part matches %q", o.Places)
	}
	return found, nil
}

// openPair builds a network of a client and a server with one link.
func openPair(ctx context.Context, o Options, backend string, p testbed.LinkParams) (*network, error) {
	return openLinks(ctx, o, backend, p, transportLink)
}

// openLinks builds a network of a client and a server with some links between them.
func openLinks(ctx context.Context, o Options, backend string, p testbed.LinkParams, links ...string) (*network, error) {
	spec := testbed.Spec{Seed: 1, Backend: backend, Hosts: []testbed.HostSpec{{Name: clientHost}, {Name: serverHost}}}
	for _, name := range links {
		spec.Links = append(spec.Links, testbed.LinkSpec{Name: name, A: clientHost, B: serverHost, AtoB: p, BtoA: p})
	}
	s, err := openNetwork(ctx, o, spec, nil)
	if err != nil {
		return nil, err
	}
	// The lab locks its default on the routes where the machine allows no program to choose it. Reno is always allowed.
	for _, host := range []string{clientHost, serverHost} {
		if err := s.Host(host).SetCongestionControl("reno"); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// exchangeOn attaches the program of TCP options on a host, until it is closed.
func (s *network) exchangeOn(host string, c option.Config) (*option.Exchange, error) {
	return attachOn(s, host, func() (*option.Exchange, error) { return option.Open(c) })
}

// attachOn attaches a program to the sockets of a host.
func attachOn[P any](s *network, host string, open func() (P, error)) (program P, err error) {
	// The host's thread has not the files that loading needs. Another thread of this process enters the host's network.
	ns, err := testbed.On(s.Host(host), func() (*os.File, error) { return os.Open("/proc/1/ns/net") })
	if err != nil {
		return program, fmt.Errorf("find the network of %s: %w", host, err)
	}
	defer ns.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err == nil {
			program, err = open()
		}
	}()
	<-done
	if err != nil {
		return program, fmt.Errorf("attach a program to the sockets of %s: %w", host, err)
	}
	return program, nil
}

// webServer answers requests with as many bytes as they ask for, in eight bytes.
type webServer struct {
	listener net.Listener
	serve    func(net.Conn)
	serving  sync.WaitGroup
	mu       sync.Mutex
	open     map[net.Conn]struct{}
}

// startWeb answers one request of each TCP connection to the server, and closes it.
func (s *network) startWeb(ctx context.Context) (*webServer, error) {
	return s.listenWeb(ctx, exchangePort, false, func(c net.Conn) { _ = answerOne(c) }) // the client checks that all came
}

func (s *network) listenWeb(ctx context.Context, port uint16, multipath bool, serve func(net.Conn)) (*webServer, error) {
	w := &webServer{serve: serve, open: make(map[net.Conn]struct{})}
	var err error
	w.listener, err = testbed.On(s.Host(serverHost), func() (net.Listener, error) {
		var config net.ListenConfig
		config.SetMultipathTCP(multipath)
		return config.Listen(ctx, "tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), port).String())
	})
	if err != nil {
		return nil, fmt.Errorf("listen on the server: %w", err)
	}
	w.serving.Go(func() {
		for {
			conn, err := w.listener.Accept()
			if err != nil {
				return // it was closed
			}
			w.keep(conn)
			w.serving.Go(func() { defer w.drop(conn); w.serve(conn) })
		}
	})
	return w, nil
}

func (w *webServer) keep(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[c] = struct{}{}
}

func (w *webServer) drop(c net.Conn) {
	w.mu.Lock()
	delete(w.open, c)
	w.mu.Unlock()
	c.Close()
}

// answerOne answers one request.
func answerOne(c net.Conn) error {
	var size [8]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return err
	}
	_, err := io.CopyN(c, endless{}, int64(binary.BigEndian.Uint64(size[:])))
	return err
}

// connections returns the open connections.
func (w *webServer) connections() (list []net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.open {
		list = append(list, c)
	}
	return list
}

func (w *webServer) close() {
	w.listener.Close()
	for _, c := range w.connections() {
		c.Close()
	}
	w.serving.Wait()
}

// endless is an endless file.
type endless struct{}

func (endless) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// get downloads size bytes by a connection of its own.
func (s *network) get(ctx context.Context, size int64) (n int64, err error) {
	c, err := s.dialWeb(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if _, err := c.Write(binary.BigEndian.AppendUint64(nil, uint64(size))); err != nil {
		return 0, fmt.Errorf("ask the server: %w", err)
	}
	n, err = io.Copy(io.Discard, c)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes came of %d", n, size)
	}
	return n, err
}

func (s *network) dialWeb(ctx context.Context) (net.Conn, error) {
	c, err := testbed.On(s.Host(clientHost), func() (net.Conn, error) {
		var dialer net.Dialer
		dialer.SetMultipathTCP(false)
		return dialer.DialContext(ctx, "tcp4", netip.AddrPortFrom(s.Host(serverHost).Addr4(), exchangePort).String())
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	return c, nil
}

// hostCommand runs a program on a host.
func (s *network) hostCommand(ctx context.Context, host, program string, args ...string) error {
	out, err := s.Host(host).Command(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s on %s: %w: %s", program, strings.Join(args, " "), host, err, out)
	}
	return nil
}
