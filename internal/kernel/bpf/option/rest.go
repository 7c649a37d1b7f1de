package option

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Rest describes a network to which nothing is announced for a while.
type Rest struct {
	Network netip.Prefix // IPv4 /24 or IPv6 /48
	Until   time.Time
}

// inside lists the networks of this host and of its site. Their servers are not behind a firewall between this host and the
// Internet.
var inside = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("fc00::/7"),
}

// rest is struct rest of rest.h.
type rest struct{ Until, Length, Row uint64 }

// Rests returns the networks to which nothing is announced for a while, because a SYN with an announcement was lost there
// and the next one, without it, was answered. After several such networks in a row, nothing is announced to the whole
// Internet until the time all. Otherwise all is zero.
func (e *Exchange) Rests() (networks []Rest, all time.Time, err error) {
	var clock unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &clock); err != nil {
		return nil, time.Time{}, fmt.Errorf("read the time since the start: %w", err)
	}
	now, since := time.Now(), clock.Nano()
	at := func(until uint64) time.Time { return now.Add(time.Duration(int64(until) - since)) }

	var until uint64
	if err := e.objects.AllUntil.Get(&until); err != nil {
		return nil, time.Time{}, fmt.Errorf("read until when nothing is announced: %w", err)
	}
	if int64(until) > since {
		all = at(until)
	}
	var address [16]byte
	var r rest
	known := make(map[netip.Prefix]bool)
	entries := e.objects.Rests.Iterate()
	for entries.Next(&address, &r) {
		if n := networkOf(address); int64(r.Until) > since && !known[n] {
			known[n] = true
			networks = append(networks, Rest{Network: n, Until: at(r.Until)})
		}
	}
	// If an entry goes meanwhile, the kernel begins again.
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, time.Time{}, fmt.Errorf("read to which networks nothing is announced: %w", err)
	}
	slices.SortFunc(networks, func(a, b Rest) int {
		return cmp.Or(a.Until.Compare(b.Until), a.Network.Addr().Compare(b.Network.Addr()))
	})
	return networks, all, nil
}

// networkOf returns the network with an address of the program's.
func networkOf(address [16]byte) netip.Prefix {
	a := netip.AddrFrom16(address).Unmap()
	if a.Is4() {
		return netip.PrefixFrom(a, 24)
	}
	return netip.PrefixFrom(a, 48)
}
