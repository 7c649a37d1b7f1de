package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	goodLink = "good"
	farLink  = "far"
	farTimes = 5 // the round trip of the far path, in those of the good one
)

// requester is a way to make requests from a client with a good path and a far one. A policy for its port decides on the paths.
type requester struct {
	name   string
	port   uint16
	policy crew.Settings // nil: TCP
	// subflows are those of the connection, by kind and state, while it makes requests.
	subflows string
	bounded  bool // by the target
}

// requesters lists what is compared. The first one is the baseline.
func requesters(good, far string) []requester {
	list := []requester{
		{name: "TCP on the good path"},
		{name: "both paths", policy: crew.Settings{"use": "fullmesh"}, subflows: "direct up, uplink up"},
		{name: "the far path as a backup", policy: crew.Settings{"use": "backup", "uplinks": []string{good, far}}, subflows: "direct up, uplink backup", bounded: true},
		{name: "the far path above 100 ms", policy: crew.Settings{"use": "fullmesh", "above_rtt": "100ms"}, subflows: "direct up", bounded: true},
	}
	for i := range list {
		list[i].port = exchangePort + uint16(i)
		if list[i].policy != nil {
			list[i].policy["ports"] = []uint16{list[i].port}
		}
	}
	return list
}

// farPath measures requests of a client whose second path has five times the round trip of the first.
func farPath(ctx context.Context, o Options, repetitions int) (found []Measurement, err error) {
	s, list, err := openFarPath(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var servers []*webServer
	defer func() {
		for _, w := range servers {
			w.close()
		}
	}()
	for _, r := range list {
		w, err := s.listenWeb(ctx, r.port, true, func(c net.Conn) {
			for answerOne(c) == nil { // until the client has closed
			}
		})
		if err != nil {
			return nil, err
		}
		servers = append(servers, w)
	}
	tails := make([][]float64, len(list))
	err = inTurns(repetitions, len(list), func(_, i int) error {
		times, err := s.makeRequests(ctx, list[i])
		if err != nil {
			return fmt.Errorf("requests by %s: %w", list[i].name, err)
		}
		tails[i] = append(tails[i], stats.Quantile(times, 0.95))
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, r := range list {
		m := of("transport requests, 95th percentile, "+r.name, "ms", tails[i])
		if i > 0 {
			m = m.against(found[0].Value)
		}
		if r.bounded {
			m = m.target("within 5 % of TCP", *m.Ratio <= 1.05)
		}
		found = append(found, m)
	}
	found[0].Note = fmt.Sprintf("answers of %d KB one after the other on one connection, %d in each run; the far path has %d times the round trip. With both "+
		"paths, 1.45 times was measured before without dcol", requestBytes/1000, requests, farTimes)
	return found, nil
}

// openFarPath builds a network of a client with two uplinks and a server, and starts the client's agent. It does not itself judge
// subflows by their worth.
func openFarPath(ctx context.Context, o Options) (s *network, list []requester, err error) {
	const rate, delay = 10_000_000, 20 * time.Millisecond
	near := testbed.LinkParams{Rate: rate, Delay: delay}
	far := testbed.LinkParams{Rate: rate, Delay: farTimes * delay}
	s, err = openNetwork(ctx, o, testbed.Spec{
		Seed: 1, Backend: testbed.BackendEmulator,
		Hosts: []testbed.HostSpec{{Name: clientHost}, {Name: router, Forward: true}, {Name: serverHost}},
		Links: []testbed.LinkSpec{
			{Name: goodLink, A: clientHost, B: router, AtoB: near, BtoA: near},
			{Name: farLink, A: clientHost, B: router, AtoB: far, BtoA: far, Cost: 9},
			{Name: serverHost, A: router, B: serverHost},
		},
	}, []string{clientHost})
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	client := s.Host(clientHost)
	for metric, link := range []string{goodLink, farLink} {
		gateway, _ := s.Host(router).AddrOn(link)
		err := s.hostCommand(ctx, clientHost, "ip", "route", "replace", "default", "via", gateway.String(), "dev", client.Interface(link), "onlink",
			"metric", fmt.Sprint(100+metric))
		if err != nil {
			return nil, nil, err
		}
	}
	// As in openLinks.
	if err := s.Host(serverHost).SetCongestionControl("reno"); err != nil {
		return nil, nil, err
	}
	list = requesters(client.Interface(goodLink), client.Interface(farLink))
	var policies []crew.Settings
	for _, r := range list {
		if r.policy != nil {
			policies = append(policies, r.policy)
		}
	}
	_, err = s.startAgent(ctx, clientHost, crew.Agent{
		Client: crew.Settings{"exclude": []string{}, "selection": "oldest"}, Over: crew.Settings{"policy": policies},
	}, nil, nil)
	return s, list, err
}

const (
	requestBytes = 100_000
	requests     = 40 // that are measured on a connection
	// warmUp is the number of requests before the ones that are measured.
	warmUp = 10
)

// makeRequests returns the times of requests in milliseconds.
func (s *network) makeRequests(ctx context.Context, r requester) (times []float64, err error) {
	c, err := s.dial(ctx, clientHost, netip.AddrPort{}, netip.AddrPortFrom(s.Host(serverHost).Addr4(), r.port), r.policy != nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	for i := range warmUp + requests {
		if i == 1 { // the server has answered: further subflows can join
			if err := s.awaitSubflows(ctx, r); err != nil {
				return nil, err
			}
		}
		began := time.Now()
		if _, err := c.Write(binary.BigEndian.AppendUint64(nil, requestBytes)); err != nil {
			return nil, fmt.Errorf("ask the server: %w", err)
		}
		if _, err := io.CopyN(io.Discard, c, requestBytes); err != nil {
			return nil, fmt.Errorf("receive the answer: %w", err)
		}
		if i >= warmUp {
			times = append(times, stats.Milliseconds(time.Since(began)))
		}
	}
	return times, s.awaitSubflows(ctx, r)
}

// awaitSubflows waits until the requester's connection has its subflows.
func (s *network) awaitSubflows(ctx context.Context, r requester) error {
	if r.policy == nil {
		return nil
	}
	return crew.Await(ctx, startLimit, 50*time.Millisecond, func() error {
		status, err := s.Status(ctx, clientHost)
		if err != nil {
			return err
		}
		var have []string
		for _, c := range status.Client.Connections {
			if c.Remote.Port() != r.port {
				continue
			}
			for _, f := range c.Subflows {
				have = append(have, f.Kind+" "+string(f.State))
			}
		}
		slices.Sort(have)
		if text := strings.Join(have, ", "); text != r.subflows {
			return fmt.Errorf("its connection has the subflows %q, want %q", text, r.subflows)
		}
		return nil
	})
}
