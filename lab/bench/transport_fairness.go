package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/testbed"
)

// fairness measures the share of a link that an MPTCP connection with two subflows takes beside TCP flows.
func fairness(ctx context.Context, o Options, repetitions int) (found []Measurement, err error) {
	length := runLength(repetitions, 15*time.Second)
	known, err := registerAlgorithms()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, known.close()) }()
	stop, err := timePrograms()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	list := contests(known.names)
	open := func() (*network, error) { return openShared(ctx, o, 10_000_000, 2) }
	ratios, err := abreast(transportAbreast, open, repetitions, len(list), func(s *network, i int) (float64, error) { return s.share(ctx, list[i], length) })
	if err != nil {
		return nil, err
	}
	for i, values := range ratios {
		c := list[i]
		m := of(fmt.Sprintf("transport fairness, MPTCP's two subflows by %s to each of %d %s", c.label, c.others, c.besideLabel), "times", values)
		if c.bounded {
			m = m.target("0.6 to 1.2", m.Value >= 0.6 && m.Value <= 1.2)
		}
		if c.model != 0 {
			m = m.against(c.model)
			m = m.target("0.7 to 1.4 of the model's", *m.Ratio >= 0.7 && *m.Ratio <= 1.4)
		}
		m.Note = c.note
		found = append(found, m)
	}
	costs, err := known.ackCosts("10 Mbit/s")
	return append(found, costs...), err
}

// linkOf returns a link with a round trip of 40 ms, whose queue holds a bandwidth-delay product. rate is in bit/s.
func linkOf(rate int64) testbed.LinkParams {
	return testbed.LinkParams{Rate: rate, Delay: 20 * time.Millisecond, Queue: int(rate / 8 * 40 / 1000)}
}

// openShared builds a network of a client and a server with one link. The client has an address on it for each subflow
// that a connection is to have.
func openShared(ctx context.Context, o Options, rate int64, subflows int) (*network, error) {
	s, err := openPair(ctx, o, testbed.BackendEmulator, linkOf(rate))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.addAddresses(ctx, subflows-1), s.limitSubflows(ctx, subflows)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// contest is a connection with two subflows beside others.
type contest struct {
	label, besideLabel string
	name, beside       string // the kernel's names
	others             int
	alike              bool    // the others have two subflows, too
	bounded            bool    // by the target
	model              float64 // what the model in Go gives, as the tests of package cc measure it; 0: not compared
	note               string
}

// contests lists what is measured. names holds the kernel's names of the algorithms.
func contests(names map[cc.Algorithm]string) (list []contest) {
	const nornet = "published (NorNet 2016): coupled flows take no more than a TCP flow of a shared bottleneck"
	for _, others := range []int{1, 3} {
		list = append(list, contest{label: "uncoupled reno", name: "reno", besideLabel: "TCP", beside: "reno", others: others, note: nornet})
	}
	for _, a := range cc.Algorithms {
		for _, others := range []int{1, 3} {
			c := contest{label: string(a), name: names[a], besideLabel: "TCP", beside: "reno", others: others, bounded: a != cc.WVegas, note: nornet}
			if a == cc.WVegas {
				c.note = "delay-based: gives way to flows that fill the queue, as published (Cao 2012)"
			}
			list = append(list, c)
		}
	}
	for _, d := range []struct {
		others int
		alike  bool
		model  float64
	}{{1, false, 1.0}, {3, false, 1.6}, {1, true, 0.9}, {3, true, 1.3}} {
		c := contest{label: string(cc.WVegas), name: names[cc.WVegas], beside: names[cc.WVegas], others: d.others, alike: d.alike, model: d.model}
		c.besideLabel, c.note = "TCP by wvegas", "with one subflow, wVegas is Vegas: each aims at ten packets in the queue"
		if d.alike {
			c.besideLabel, c.note = "MPTCP with two subflows by wvegas", "against itself"
		}
		c.note += "; the baseline is what the model in Go gives in simulated time (TestSharesOfWVegas)"
		list = append(list, c)
	}
	return list
}

// runLength returns the length of a run. With at least transportFull repetitions it is that of the publications.
func runLength(repetitions int, short time.Duration) time.Duration {
	if repetitions >= transportFull {
		return 60 * time.Second
	}
	return short
}

// algorithms are dcol's congestion controls, as the kernel knows them until they are closed.
type algorithms struct {
	registered []*cc.Registration
	names      map[cc.Algorithm]string
}

func registerAlgorithms() (known algorithms, err error) {
	known.names = make(map[cc.Algorithm]string)
	for _, a := range cc.Algorithms {
		r, err := cc.Register(a)
		if err != nil {
			return known, errors.Join(err, known.close())
		}
		known.registered, known.names[a] = append(known.registered, r), r.Name()
	}
	return known, nil
}

// compared returns the kernel's names of what is compared: uncoupled Reno, and then each of the coupled algorithms.
func (a algorithms) compared() []string {
	names := []string{uncoupled}
	for _, c := range coupled {
		names = append(names, a.names[c])
	}
	return names
}

func (a algorithms) close() error {
	var errs []error
	for _, r := range a.registered {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// timePrograms makes the kernel measure how long each BPF program takes, until stop is called.
func timePrograms() (stop func() error, err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("have the kernel count the time of programs: %w", err)
	}
	return stats.Close, nil
}

// ackCosts returns the time that each algorithm took for an ACK, on a link of this rate, since it was registered.
func (a algorithms) ackCosts(rate string) (found []Measurement, err error) {
	for i, r := range a.registered {
		calls, spent, err := r.Acknowledged()
		if err != nil {
			return found, err
		}
		each := float64(spent.Nanoseconds()) / float64(max(calls, 1))
		m := once(fmt.Sprintf("transport cost, an ACK by %s with two subflows at %s", cc.Algorithms[i], rate), "ns", each).target("<= 500", each <= 500)
		m.Note = fmt.Sprintf("the mean of %d calls, with what the kernel's statistics of programs cost", calls)
		found = append(found, m)
	}
	return found, nil
}

// addAddresses gives the client more addresses on its link, from which its kernel opens more subflows.
func (s *network) addAddresses(ctx context.Context, n int) error {
	host := s.Host(clientHost)
	name := host.Interface(transportLink)
	for i := range n {
		bytes := host.Addr4().As4()
		bytes[3] += 100 + byte(i)
		address := netip.AddrFrom4(bytes).String()
		for _, args := range [][]string{
			{"address", "add", address + "/24", "dev", name}, {"mptcp", "endpoint", "add", address, "dev", name, "subflow"},
		} {
			if err := s.hostCommand(ctx, clientHost, "ip", args...); err != nil {
				return err
			}
		}
	}
	return nil
}

// limitSubflows bounds how many subflows later connections have.
func (s *network) limitSubflows(ctx context.Context, n int) error {
	more := strconv.Itoa(n - 1)
	return errors.Join(s.hostCommand(ctx, clientHost, "ip", "mptcp", "limits", "set", "subflows", more, "add_addr_accepted", more),
		s.hostCommand(ctx, serverHost, "ip", "mptcp", "limits", "set", "subflows", more))
}

// share returns the goodput of an MPTCP connection over the mean of the connections beside it.
func (s *network) share(ctx context.Context, c contest, length time.Duration) (ratio float64, err error) {
	mptcp, others, err := s.carried(ctx, c, length)
	if err == nil && others == 0 {
		err = errors.New("the connections beside it brought nothing")
	}
	return mptcp / others, err
}

// carried returns the bytes that an MPTCP connection carries, and the mean of the connections beside it. It begins to count
// after a third of length.
func (s *network) carried(ctx context.Context, c contest, length time.Duration) (mptcp, others float64, err error) {
	k, err := s.startCounter(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer k.close()
	var flows []*flow
	defer func() {
		for _, f := range flows {
			err = errors.Join(err, f.close())
		}
	}()
	for i := range 1 + c.others {
		congestion := c.beside
		if i == 0 {
			congestion = c.name
		}
		f, err := s.upload(ctx, congestion, i == 0 || c.alike)
		if err != nil {
			return 0, 0, err
		}
		flows = append(flows, f)
	}
	if err := crew.Pause(ctx, length/3); err != nil {
		return 0, 0, err
	}
	before := k.received()
	if err := crew.Pause(ctx, length); err != nil {
		return 0, 0, err
	}
	after := k.received()
	for i, f := range flows {
		at := f.conn.LocalAddr().String()
		bytes := float64(after[at] - before[at])
		if i == 0 {
			mptcp = bytes
		} else {
			others += bytes / float64(c.others)
		}
	}
	return mptcp, others, nil
}

// flow is an upload that goes on until it is closed.
type flow struct {
	conn  net.Conn
	ended chan error
}

// upload begins to send from the client, by a congestion control and, if multipath, by MPTCP.
func (s *network) upload(ctx context.Context, congestion string, multipath bool) (*flow, error) {
	c, err := testbed.On(s.Host(clientHost), func() (net.Conn, error) {
		var dialer net.Dialer
		dialer.SetMultipathTCP(multipath)
		dialer.Control = func(_, _ string, raw syscall.RawConn) (err error) {
			e := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
			})
			return errors.Join(err, e)
		}
		return dialer.DialContext(ctx, "tcp4", netip.AddrPortFrom(s.Host(serverHost).Addr4(), transferPort).String())
	})
	if err != nil {
		return nil, fmt.Errorf("upload by %s: %w", congestion, err)
	}
	f := &flow{conn: c, ended: make(chan error, 1)}
	go func() { f.ended <- send(c) }()
	return f, nil
}

func (f *flow) close() error {
	f.conn.Close()
	if err := <-f.ended; !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// counter counts the bytes that each connection brings to the server, by the client's address.
type counter struct {
	listener net.Listener
	serving  sync.WaitGroup
	mu       sync.Mutex
	bytes    map[string]*atomic.Int64
}

func (s *network) startCounter(ctx context.Context) (*counter, error) {
	k := &counter{bytes: make(map[string]*atomic.Int64)}
	var err error
	k.listener, err = testbed.On(s.Host(serverHost), func() (net.Listener, error) {
		var config net.ListenConfig
		config.SetMultipathTCP(true)
		return config.Listen(ctx, "tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), transferPort).String())
	})
	if err != nil {
		return nil, fmt.Errorf("listen on the server: %w", err)
	}
	k.serving.Go(func() {
		for {
			conn, err := k.listener.Accept()
			if err != nil {
				return // it was closed
			}
			n := new(atomic.Int64)
			k.mu.Lock()
			k.bytes[conn.RemoteAddr().String()] = n
			k.mu.Unlock()
			k.serving.Go(func() {
				defer conn.Close()
				buffer := make([]byte, 64<<10)
				for {
					got, err := conn.Read(buffer)
					n.Add(int64(got))
					if err != nil {
						return
					}
				}
			})
		}
	})
	return k, nil
}

func (k *counter) received() map[string]int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := make(map[string]int64)
	for at, n := range k.bytes {
		now[at] = n.Load()
	}
	return now
}

// close returns when all connections have ended, which their clients see to.
func (k *counter) close() {
	k.listener.Close()
	k.serving.Wait()
}
