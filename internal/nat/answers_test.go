package nat

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/nat/stun"
)

// A flood from one source is answered only in part, and does not take answers away from other sources.
func TestFloodTakesNoAnswersFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lasts = 10 // seconds
		w := newWorld(t)
		h, flooder := w.add("203.0.113.1", open), w.add("198.51.100.1", open)
		member := w.add(anotherShare(h, flooder.outside), open)
		ask := func(from *host) {
			from.WriteOther(stun.Message{ID: stun.NewID(), Request: true}.Append(nil), h.at())
		}
		for range lasts {
			for ms := range 1000 {
				ask(flooder)
				if ms == 505 {
					ask(member)
				}
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		answers := map[netip.AddrPort]int{}
		for _, to := range h.sends[port] {
			answers[to]++
		}
		if n := answers[member.at()]; n != lasts {
			t.Errorf("the member got %d answers to %d requests", n, lasts)
		}
		if n := answers[flooder.at()]; n < answersBurst || n > answersBurst+lasts*answersRate+1 {
			t.Errorf("the flooder got %d answers", n)
		}
	})
}

// anotherShare returns an address whose rate limiter is not that of the address than.
func anotherShare(h *host, than netip.Addr) string {
	a := than.Next()
	for h.answers.share(a) == h.answers.share(than) {
		a = a.Next()
	}
	return a.String()
}

// With any number of forged sources, the answers are limited to those of all rate limiters.
func TestForgedSourcesAreBounded(t *testing.T) {
	for _, family := range []struct {
		name  string
		forge func() netip.Addr
	}{
		{"IPv4", func() netip.Addr { return ipv4(rand.Uint32()) }},
		{"IPv6", func() netip.Addr { return ipv6(rand.Uint64(), rand.Uint64()) }},
	} {
		synctest.Test(t, func(t *testing.T) { // the time stands still
			a := newAnswers()
			answered := 0
			for range 4 * answersShares * answersBurst {
				if a.allow(family.forge()) {
					answered++
				}
			}
			if answered > answersShares*answersBurst {
				t.Errorf("%s: %d answers", family.name, answered)
			}
		})
	}
	// Sources of one family do not affect the other.
	a := newAnswers()
	for n := range uint64(4 * answersShares * answersBurst) {
		a.allow(ipv6(n, 1))
	}
	if !a.allow(ipv4(1)) {
		t.Error("IPv6 has used up what IPv4 has")
	}
}

func TestShares(t *testing.T) {
	a := newAnswers()
	same := func(what, x, y string) {
		t.Helper()
		if a.share(netip.MustParseAddr(x)) != a.share(netip.MustParseAddr(y)) {
			t.Errorf("%s: %s and %s have a share each", what, x, y)
		}
	}
	same("one IPv6 network", "2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff")
	same("one IPv4 address", "192.0.2.1", "::ffff:192.0.2.1")
	same("one link", "fe80::1%lo", "fe80::2")

	// Neighbours have different rate limiters, and each host assigns them differently.
	b := newAnswers()
	shares, again, moved := map[any]bool{}, map[any]bool{}, 0
	for n := range uint32(100) {
		shares[a.share(ipv4(n))] = true
		again[a.share(ipv6(uint64(n), 1))] = true
		if index(t, a, ipv4(n)) != index(t, b, ipv4(n)) {
			moved++
		}
	}
	if len(shares) < 50 || len(again) < 50 || moved < 50 {
		t.Errorf("100 addresses have %d shares in IPv4, %d in IPv6; with another key %d have another", len(shares), len(again), moved)
	}
}

func index(t *testing.T, a *answers, from netip.Addr) int {
	t.Helper()
	for i := range a.v4 {
		if a.share(from) == &a.v4[i] {
			return i
		}
	}
	t.Fatalf("%v has no share", from)
	return 0
}

func ipv4(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

func ipv6(network, host uint64) netip.Addr {
	var b [16]byte
	for i := range 8 {
		b[i], b[8+i] = byte(network>>(56-8*i)), byte(host>>(56-8*i))
	}
	return netip.AddrFrom16(b)
}
