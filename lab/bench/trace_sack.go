package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/lab/middlebox"
	"github.com/detour-collective/dcol/lab/testbed"
)

// The experiment of the thesis on damaged SACK (3.4.3, figure 3.8): 10 Mbit/s, 1 % loss behind the box.
const (
	sackRate  = 10_000_000
	sackLoss  = 0.01
	sackDelay = 5 * time.Millisecond
	sackBytes = 4 << 20
	sackRuns  = 10
)

// damagedSACK measures uploads through a box that moves sequence numbers: with SACK blocks moved back, with blocks
// left as they are, and without SACK.
func damagedSACK(ctx context.Context, o Options) (found []Measurement, err error) {
	shape := testbed.LinkParams{Rate: sackRate, Delay: sackDelay}
	lossy := shape
	lossy.Loss = sackLoss
	n, err := testbed.Build(ctx, testbed.Spec{
		Backend: testbed.BackendEmulator, Seed: 1,
		Hosts: []testbed.HostSpec{{Name: "client"}, {Name: router, Forward: true}, {Name: serverHost}},
		Links: []testbed.LinkSpec{
			{Name: "near", A: "client", B: router, AtoB: shape, BtoA: shape},
			{Name: "far", A: router, B: serverHost, AtoB: lossy, BtoA: shape},
		},
	}, o.Log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	cases := []struct {
		name string
		box  middlebox.Kind
		sack string
	}{
		{"trace: goodput with SACK blocks moved back by the box", middlebox.RandomiseSeq, "1"},
		{"trace: goodput with SACK blocks left as they are", middlebox.RandomiseSeqOnly, "1"},
		{"trace: goodput without SACK", middlebox.RandomiseSeqOnly, "0"},
	}
	rates := make([][]float64, len(cases))
	for run := range sackRuns { // in turn, so that a slow moment of the machine meets all
		for i, c := range cases {
			err := errors.Join(n.SetMiddlebox(router, testbed.Middlebox(c.box)), n.Host("client").Sysctl("net.ipv4.tcp_sack", c.sack))
			if err != nil {
				return nil, err
			}
			rate, err := sackUpload(ctx, n)
			if err != nil {
				return nil, err
			}
			rates[i] = append(rates[i], rate)
		}
		fmt.Fprintf(o.Stderr, "trace: damaged SACK, run %d of %d\n", run+1, sackRuns)
	}
	for i, c := range cases {
		m := of(c.name, "Mbit/s", rates[i])
		if i > 0 {
			m = m.against(found[0].Value)
		}
		if i == 1 {
			m = m.target("thesis: ratio < 0.5", m.Value < found[0].Value/2)
		}
		found = append(found, m)
	}
	return found, nil
}

// sackUpload returns the rate of an upload in Mbit/s.
func sackUpload(ctx context.Context, n *testbed.Network) (float64, error) {
	server := n.Host(serverHost)
	// MPTCP would add sequence numbers of its own.
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	listener, err := testbed.On(server, func() (net.Listener, error) {
		return config.Listen(ctx, "tcp4", netip.AddrPortFrom(server.Addr4(), 0).String())
	})
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	received := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			received <- err
			return
		}
		defer conn.Close()
		buffer, total := make([]byte, 1<<16), 0
		for total < sackBytes {
			count, err := conn.Read(buffer)
			if total += count; err != nil {
				received <- fmt.Errorf("%d bytes have arrived: %w", total, err)
				return
			}
		}
		received <- nil
	}()
	dialer := net.Dialer{Timeout: startLimit}
	dialer.SetMultipathTCP(false)
	conn, err := testbed.On(n.Host("client"), func() (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp4", listener.Addr().String())
	})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	start := time.Now()
	if _, err := conn.Write(make([]byte, sackBytes)); err != nil {
		return 0, err
	}
	select {
	case err := <-received:
		return float64(sackBytes) * 8 / 1e6 / time.Since(start).Seconds(), err
	case <-time.After(5 * time.Minute):
		return 0, errors.New("an upload takes more than five minutes")
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
