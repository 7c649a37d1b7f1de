package waypoint

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

const manyMappings = 100_000

// benchClient spreads mappings over client addresses, a thousand each.
func benchClient(i int) session.Peer {
	return peer("alice", netip.AddrFrom4([4]byte{10, 1, 1 + byte(i/1000), 1}))
}

func benchServer(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i / 250), 3 + byte(i%250)}), 443)
}

func startBench(b *testing.B) (*network, *Waypoint) {
	n := newNetwork(b)
	n.config.Allow = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}
	n.config.MappingsPerMember = 2 * manyMappings
	n.config.MappingLifetime = time.Hour
	w, _ := n.start(b)
	return n, w
}

// grant asks for mappings from first up to last as fast as askers, each with one request at a time,
// can.
func grant(b *testing.B, w *Waypoint, first, last, askers int) {
	next := make(chan int, askers)
	var wg sync.WaitGroup
	for range askers {
		wg.Go(func() {
			for i := range next {
				req := wire.MapRequest{Server: benchServer(i), Proposed: 443}
				if _, refusal := w.Map(context.Background(), benchClient(i), req); refusal != nil {
					b.Error(refusal)
				}
			}
		})
	}
	for i := first; i < last; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
}

// BenchmarkGrants fills a waypoint with 100,000 mappings, in the kernel, by concurrent requests.
// The metric grants/s is over all, worst-grants/s over the slowest tenth.
func BenchmarkGrants(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		_, w := startBench(b)
		b.StartTimer()
		begin := time.Now()
		var slowest time.Duration
		const step = manyMappings / 10
		for done := 0; done < manyMappings; done += step {
			part := time.Now()
			grant(b, w, done, done+step, 64)
			slowest = max(slowest, time.Since(part))
		}
		b.ReportMetric(manyMappings/time.Since(begin).Seconds(), "grants/s")
		b.ReportMetric(step/slowest.Seconds(), "worst-grants/s")
		b.StopTimer()
		if err := w.Close(); err != nil {
			b.Error(err)
		}
		b.StartTimer()
	}
}

// BenchmarkLoneGrant measures one grant that shares its transaction with no other.
func BenchmarkLoneGrant(b *testing.B) {
	for name, mappings := range map[string]int{"alone": 0, "among-100000": manyMappings} {
		b.Run(name, func(b *testing.B) {
			_, w := startBench(b)
			grant(b, w, 0, mappings, 64)
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				begin := time.Now()
				req := wire.MapRequest{Server: benchServer(i % 50_000), Proposed: 443}
				if _, refusal := w.Map(context.Background(), peer("bob", benchClient(i).Addr), req); refusal != nil {
					b.Fatal(refusal)
				}
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}

// BenchmarkRestart is how long an agent takes to adopt 100,000 mappings.
func BenchmarkRestart(b *testing.B) {
	n, w := startBench(b)
	grant(b, w, 0, manyMappings, 64)
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	n.waypoint.Must(b, func() error {
		for b.Loop() {
			w, err := Start(n.config, w.loop.log)
			if err != nil {
				return err
			}
			if s, err := w.Snapshot(); err != nil || s.Mappings != manyMappings {
				b.Errorf("%d mappings, %v", s.Mappings, err)
			}
			if err := w.Close(); err != nil {
				return err
			}
		}
		return nil
	})
}

// BenchmarkGoodput sends alternately through the only mapping of one waypoint, and through one of 100,000 on
// another. The metric is the median of the second's rate over the first's in each turn, so that a busy machine
// affects both alike.
func BenchmarkGoodput(b *testing.B) {
	alone, among := newPipe(b, 0), newPipe(b, manyMappings)
	var ratios []float64
	for b.Loop() {
		ratios = append(ratios, alone.send(b).Seconds()/among.send(b).Seconds())
	}
	slices.Sort(ratios)
	b.SetBytes(2 * pipeChunk)
	b.ReportMetric(ratios[len(ratios)/2], "among/alone")
}

const pipeChunk = 64 << 20

// pipe is a connection through a waypoint to a server that confirms each chunk it got.
type pipe struct{ net.Conn }

func newPipe(b *testing.B, mappings int) pipe {
	n, w := startBench(b)
	grant(b, w, 0, mappings, 64)
	server := n.server.Listen(b, "10.2.0.1:443")
	go func() {
		c, err := server.Accept()
		for err == nil {
			if _, err = io.CopyN(io.Discard, c, pipeChunk); err == nil {
				_, err = c.Write([]byte{1})
			}
		}
	}()
	g := mustMap(b, w, peer("alice", client4), netip.MustParseAddrPort("10.2.0.1:443"), 443)
	c, err := n.client.Dial(context.Background(), netip.AddrPortFrom(waypoint4, g.Port))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return pipe{c}
}

// send sends a chunk and returns how long it took to arrive.
func (p pipe) send(b *testing.B) time.Duration {
	begin := time.Now()
	chunk := make([]byte, 1<<20)
	for range pipeChunk / len(chunk) {
		if _, err := p.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := io.ReadFull(p, chunk[:1]); err != nil {
		b.Fatal(err)
	}
	return time.Since(begin)
}
