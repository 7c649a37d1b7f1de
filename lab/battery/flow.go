package battery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/probe"
	"github.com/detour-collective/dcol/lab/testbed"
)

// flowPort is where the server takes flows, and sampleInterval how often they are looked at.
const (
	flowPort       = 5201
	sampleInterval = 50 * time.Millisecond
	// connectLimit is long enough for several repetitions of a SYN.
	connectLimit = 40 * time.Second
)

// flowPlan describes a connection.
type flowPlan struct {
	multipath bool
	from, to  int // uplinks, from 1 on
	down      bool
	// congestion is the kernel's name of a congestion control; "": the host's.
	congestion string
	// rate limits the sender, in Mbit/s; 0: as fast as it can.
	rate float64
}

// flow is a connection that sends until it is stopped.
type flow struct {
	plan             flowPlan
	client, server   net.Conn
	received         atomic.Int64
	sent             int64 // once the sender has ended
	began            time.Time
	senders, readers sync.WaitGroup
	messages         *messages
	sampling         chan struct{}
	sampled          sync.WaitGroup
	stopSending      atomic.Bool

	mu      sync.Mutex
	samples []sample
	err     error
}

// sample is a look at a flow.
type sample struct {
	at       time.Duration // since the flow began
	received int64
	subflows []subflow
}

// subflow has the figures of a subflow in a sample.
type subflow struct {
	path  int
	bytes uint64 // carried in the direction of the flow
	rtt   time.Duration
}

// listener takes flows on the server.
func (b *bed) listen(ctx context.Context) (net.Listener, error) {
	return testbed.On(b.Host(serverHost), func() (net.Listener, error) {
		var c net.ListenConfig
		c.SetMultipathTCP(true)
		return c.Listen(ctx, "tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), flowPort).String())
	})
}

// start begins a flow. l is the server's listener; flows are started one after the other.
func (b *bed) start(ctx context.Context, l net.Listener, p flowPlan) (*flow, error) {
	var d net.Dialer
	d.Timeout = connectLimit
	d.SetMultipathTCP(p.multipath)
	d.LocalAddr = &net.TCPAddr{IP: b.clientAddr(p.from).AsSlice()}
	d.Control = func(_, _ string, raw syscall.RawConn) error { return setCongestion(raw, p.congestion) }
	type accepted struct {
		conn net.Conn
		err  error
	}
	arrived := make(chan accepted, 1)
	go func() {
		c, err := l.Accept()
		arrived <- accepted{c, err}
	}()
	client, err := testbed.On(b.Host(clientHost), func() (net.Conn, error) {
		return d.DialContext(ctx, "tcp4", netip.AddrPortFrom(b.serverAddr(p.to), flowPort).String())
	})
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	var server net.Conn
	select {
	case a := <-arrived:
		if server = a.conn; a.err != nil {
			return nil, errors.Join(a.err, client.Close())
		}
	case <-time.After(connectLimit):
		return nil, errors.Join(errors.New("the server did not take the connection"), client.Close())
	}
	if raw, err := server.(syscall.Conn).SyscallConn(); err == nil {
		if err := setCongestion(raw, p.congestion); err != nil {
			return nil, errors.Join(err, client.Close(), server.Close())
		}
	}
	f := &flow{plan: p, client: client, server: server, began: time.Now(), sampling: make(chan struct{})}
	f.messages = &messages{rate: p.rate, began: f.began}
	from, to := client, server
	if p.down {
		from, to = server, client
	}
	f.senders.Go(func() { f.send(from) })
	f.readers.Go(func() { f.read(to) })
	f.sampled.Go(func() { f.sample(b) })
	return f, nil
}

func setCongestion(raw syscall.RawConn, name string) (err error) {
	if name == "" {
		return nil
	}
	e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	})
	return errors.Join(os.NewSyscallError("setsockopt TCP_CONGESTION "+name, err), e)
}

// send writes until the flow is stopped.
func (f *flow) send(to net.Conn) {
	data := make([]byte, 64<<10)
	if f.plan.rate > 0 {
		data = data[:messageSize]
	}
	defer func() {
		if half, ok := to.(*net.TCPConn); ok {
			_ = half.CloseWrite()
		}
	}()
	for i := 0; !f.stopSending.Load(); i++ {
		if f.plan.rate > 0 {
			time.Sleep(time.Until(f.messages.due(i)))
		}
		n, err := to.Write(data)
		f.sent += int64(n)
		if err != nil {
			f.fail(err)
			return
		}
	}
}

func (f *flow) read(from net.Conn) {
	buffer := make([]byte, 256<<10)
	for {
		n, err := from.Read(buffer)
		f.messages.arrived(f.received.Add(int64(n)), time.Now())
		if err != nil {
			if !errors.Is(err, io.EOF) {
				f.fail(err)
			}
			return
		}
	}
}

func (f *flow) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		f.err = err
	}
}

// sample looks at the flow at an interval.
func (f *flow) sample(b *bed) {
	ticker := time.NewTicker(sampleInterval)
	defer ticker.Stop()
	for {
		s := sample{at: time.Since(f.began), received: f.received.Load(), subflows: f.look(b)}
		f.mu.Lock()
		f.samples = append(f.samples, s)
		f.mu.Unlock()
		select {
		case <-f.sampling:
			return
		case <-ticker.C:
		}
	}
}

// look reads the flow's subflows.
func (f *flow) look(b *bed) (list []subflow) {
	if !f.plan.multipath {
		raw, err := f.client.(syscall.Conn).SyscallConn()
		if err != nil {
			return nil
		}
		_ = raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				list = []subflow{{path: (f.plan.from-1)*b.shape.m + f.plan.to, bytes: info.Bytes_acked, rtt: time.Duration(info.Rtt) * time.Microsecond}}
			}
		})
		return list
	}
	info, err := probe.Info(f.client)
	if err != nil {
		return nil
	}
	for _, s := range info.Subflows {
		bytes := s.BytesAcked
		if f.plan.down {
			bytes = s.BytesReceived
		}
		list = append(list, subflow{b.pathOf(s.Local.Addr(), s.Remote.Addr()), bytes, s.RTT})
	}
	return list
}

// onServer returns the paths of the client's subflows that the server has. A server that learns that one is gone tries to
// open one itself, from a port of its own; such attempts are left out.
func (f *flow) onServer(b *bed) (paths []int) {
	info, err := probe.Info(f.server)
	if err != nil {
		return nil
	}
	for _, s := range info.Subflows {
		if at, ok := f.server.LocalAddr().(*net.TCPAddr); ok && int(s.Local.Port()) == at.Port {
			paths = append(paths, b.pathOf(s.Remote.Addr(), s.Local.Addr()))
		}
	}
	return paths
}

// stop ends the sender, waits until the receiver has everything, and closes the flow. It returns the bytes that were
// sent and did not arrive.
func (f *flow) stop(wait time.Duration) (lost int64, err error) {
	f.stopSending.Store(true)
	from, to := f.client, f.server
	if f.plan.down {
		from, to = to, from
	}
	_ = from.SetWriteDeadline(time.Now().Add(wait))
	f.senders.Wait()
	_ = to.SetReadDeadline(time.Now().Add(wait))
	f.readers.Wait()
	close(f.sampling)
	f.sampled.Wait()
	_ = f.client.Close()
	_ = f.server.Close()
	return f.sent - f.received.Load(), f.err
}

// abandon ends the flow without waiting for its data.
func (f *flow) abandon() {
	f.stopSending.Store(true)
	_ = f.client.SetDeadline(time.Unix(1, 0))
	_ = f.server.SetDeadline(time.Unix(1, 0))
	f.senders.Wait()
	f.readers.Wait()
	close(f.sampling)
	f.sampled.Wait()
	reset(f.client)
	reset(f.server)
}

// reset closes a connection without delivering what it holds.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// seen returns the samples so far.
func (f *flow) seen() []sample {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.samples[:len(f.samples):len(f.samples)]
}

// goodput returns the mean between two moments of a flow, in Mbit/s.
func goodput(samples []sample, from, to time.Duration) float64 {
	a, b := at(samples, from), at(samples, to)
	if b.at <= a.at {
		return 0
	}
	return float64(b.received-a.received) * 8 / 1e6 / (b.at - a.at).Seconds()
}

// at returns the last sample until a moment.
func at(samples []sample, moment time.Duration) sample {
	var last sample
	for _, s := range samples {
		if s.at > moment {
			break
		}
		last = s
	}
	return last
}

// rtts returns the mean of subflows' round trips between two moments, weighted by the bytes of each, in ms.
func rtts(samples []sample, from, to time.Duration) float64 {
	var sum, weight float64
	before := map[int]uint64{}
	for _, s := range samples {
		for _, one := range s.subflows {
			moved := float64(one.bytes - min(one.bytes, before[one.path]))
			before[one.path] = one.bytes
			if s.at >= from && s.at <= to && one.rtt > 0 {
				sum += moved * float64(one.rtt) / float64(time.Millisecond)
				weight += moved
			}
		}
	}
	if weight == 0 {
		return 0
	}
	return sum / weight
}

// carried returns the bytes that each path carried between two moments.
func carried(samples []sample, from, to time.Duration) map[int]float64 {
	a, b := at(samples, from), at(samples, to)
	bytes := map[int]float64{}
	for _, s := range b.subflows {
		bytes[s.path] += float64(s.bytes)
	}
	for _, s := range a.subflows {
		bytes[s.path] -= float64(s.bytes)
	}
	return bytes
}
