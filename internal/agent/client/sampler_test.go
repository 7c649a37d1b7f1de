package client

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// manyKernel has so many subflows, every tenth of which somebody else opened.
type manyKernel struct {
	mptcp.Kernel
	subflows int
}

func (k *manyKernel) ChecksumErrors() (uint64, error) { return 7, nil }
func (k *manyKernel) Subflows(yield func(*mptcp.Subflow) bool) error {
	for i := range k.subflows {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(i))
		metrics := mptcp.Metrics{ReceiverRTT: time.Second, Timestamps: i%2 == 0}
		if !yield(&mptcp.Subflow{Token: uint32(i), Local: at, ServerSide: i%10 == 9, Metrics: metrics}) {
			break
		}
	}
	return nil
}

// A complete sample comes in parts of the same memory, the last of which is marked even if it is empty.
func TestSampleInParts(t *testing.T) {
	for _, subflows := range []int{0, 1, partSize, 10 * partSize, 10*partSize + 1, 5000} {
		s := sampler{kernel: &manyKernel{subflows: subflows}}
		parts, seen, ended := 0, 0, false
		err := s.all(func(part path.Measured) {
			if part.Continues != (parts > 0) || ended || !part.Complete || part.ChecksumErrors != 7 || len(part.Samples) > partSize {
				t.Fatalf("%d subflows: part %d is %+v", subflows, parts, part)
			}
			for _, sm := range part.Samples {
				if seen%10 == 9 {
					seen++
				}
				if sm.Token != path.Token(seen) {
					t.Fatalf("%d subflows: %d comes after %d", subflows, sm.Token, seen)
				}
				if sm.ReceiverRTT != time.Second || sm.Timestamps != (seen%2 == 0) {
					t.Fatalf("%d subflows: %+v", subflows, sm)
				}
				seen++
			}
			parts, ended = parts+1, !part.More
		})
		if err != nil || !ended || subflows-seen > 1 {
			t.Errorf("%d subflows: %d seen in %d parts, ended %v, %v", subflows, seen, parts, ended, err)
		}
		if cap(s.part) > 2*partSize {
			t.Errorf("%d subflows: memory for %d samples", subflows, cap(s.part))
		}
	}
}

// busyKernel has connections with two subflows each, on which data moved. Each look-up takes a while.
type busyKernel struct {
	mptcp.Kernel
	lookUp time.Duration
	asked  map[uint32]int // how often, by token
}

func (k *busyKernel) Progress(token uint32) (mptcp.Progress, error) {
	k.asked[token]++
	time.Sleep(k.lookUp)
	return mptcp.Progress{Received: 100}, nil
}

func (k *busyKernel) Subflow(local, remote netip.AddrPort) (mptcp.Subflow, error) {
	time.Sleep(k.lookUp)
	return mptcp.Subflow{Token: uint32(local.Port()), Local: local, Remote: remote, Metrics: mptcp.Metrics{BytesReceived: 200}}, nil
}

const samplesFor = 4 * time.Second

// sampleClosely performs rounds of close samples of this many connections with a detour, for a time in which all of them count
// as active. It returns the client and the number of rounds. The first two do not count: they measure how long look-ups take.
func sampleClosely(t *testing.T, kernel *busyKernel, connections int) (c *Client, rounds int) {
	c = looping(kernel, path.Config{Policy: policy.Detours{Subflows: 2}})
	now := time.Now()
	server, waypoint := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddr("192.0.2.2")
	c.manager.Handle(path.LocalAddrs{Addrs: []netip.Addr{homeAddress}}, now)
	c.manager.Handle(path.DetourOffered{Detour: path.Detour{ID: "bob", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(waypoint, 0)}}, now)
	for i := range connections {
		token, local := path.Token(i+1), netip.AddrPortFrom(homeAddress, uint16(i+1))
		for _, a := range c.manager.Handle(path.ConnEstablished{Token: token, Local: local, Remote: server}, now) {
			if a, ok := a.(path.CreateSubflow); ok {
				up := path.SubflowEstablished{Token: token, LocalID: a.LocalID, Local: netip.AddrPortFrom(homeAddress, uint16(i+1+connections)), Remote: a.Remote}
				c.manager.Handle(up, now)
			}
		}
		c.manager.Handle(path.Measured{Samples: []path.Sample{{Token: token, Local: local, Remote: server, BytesReceived: 100}}}, now)
	}
	for range 2 {
		time.Sleep(c.sampleWatched(t.Context(), time.Now()))
	}
	clear(kernel.asked)
	for began := time.Now(); time.Since(began) < samplesFor; rounds++ {
		time.Sleep(c.sampleWatched(t.Context(), time.Now()))
	}
	return c, rounds
}

// The samples of connections that are sampled closely come in parts of the same memory, too.
func TestWatchInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connections = 3*partSize + 1
		kernel := &busyKernel{lookUp: time.Microsecond, asked: make(map[uint32]int)}
		c, rounds := sampleClosely(t, kernel, connections)
		if len(kernel.asked) != connections {
			t.Errorf("%d of %d connections were sampled", len(kernel.asked), connections)
		}
		for token, times := range kernel.asked {
			if times != rounds {
				t.Errorf("connection %d was sampled %d times in %d rounds", token, times, rounds)
			}
		}
		if samples, progress := cap(c.sampler.watched.Samples), cap(c.sampler.watched.Progress); samples > 4*partSize || progress > 2*partSize {
			t.Errorf("memory for %d samples and %d connections", samples, progress)
		}
	})
}

// However many connections are active, and however long look-ups take, some connections are sampled closely, and sampling
// takes no more than its share of a core.
func TestWatchWithinItsShare(t *testing.T) {
	for _, lookUp := range []time.Duration{5 * time.Microsecond, 10 * time.Microsecond, 100 * time.Microsecond} {
		synctest.Test(t, func(t *testing.T) {
			const connections = 3000
			kernel := &busyKernel{lookUp: lookUp, asked: make(map[uint32]int)}
			_, rounds := sampleClosely(t, kernel, connections)
			lookUps, closely := 0, 0
			for _, times := range kernel.asked {
				lookUps += 3 * times
				if times == rounds {
					closely++
				}
			}
			if rounds < int(samplesFor/path.LongestInterval)-1 || closely < leastRoom/2 {
				t.Errorf("%v a look-up: %d connections were sampled closely, in %d rounds", lookUp, closely, rounds)
			}
			if share := float64(time.Duration(lookUps)*lookUp) / float64(samplesFor); share > 1.2/sampleShare {
				t.Errorf("%v a look-up: sampling took %.1f %% of a core", lookUp, 100*share)
			}
		})
	}
}
