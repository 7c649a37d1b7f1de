package egress

import (
	"net/netip"
	"slices"
)

var (
	sixToFour = netip.MustParsePrefix("2002::/16")
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
)

// never lists addresses that are denied even if the operator allows them, because they lead to the waypoint itself or to
// everybody.
var never = []entry{
	{netip.MustParsePrefix("0.0.0.0/8"), Unspecified}, // Linux takes 0.0.0.0 as this host
	{netip.MustParsePrefix("127.0.0.0/8"), Loopback},
	{netip.MustParsePrefix("224.0.0.0/4"), Multicast},
	{netip.MustParsePrefix("255.255.255.255/32"), Broadcast},
	{netip.MustParsePrefix("::/128"), Unspecified},
	{netip.MustParsePrefix("::1/128"), Loopback},
	{netip.MustParsePrefix("::/96"), Transition},           // IPv4-compatible, RFC 4291
	{netip.MustParsePrefix("::ffff:0:0/96"), Transition},   // IPv4-mapped: IPv4 has one form only
	{netip.MustParsePrefix("::ffff:0:0:0/96"), Transition}, // IPv4-translated, RFC 2765
	{netip.MustParsePrefix("ff00::/8"), Multicast},
}

// defaults follow the IANA special-purpose address registries (RFC 6890). Everything outside of global
// unicast space is denied, so that space that is assigned later is not open by accident. Beside these
// are cloud providers' own services at public addresses. The most specific entries come first.
var defaults = sorted([]entry{
	{netip.MustParsePrefix("0.0.0.0/0"), 0},
	{netip.MustParsePrefix("10.0.0.0/8"), Private},
	{netip.MustParsePrefix("100.64.0.0/10"), SharedAddress},
	{netip.MustParsePrefix("169.254.0.0/16"), LinkLocal},
	{netip.MustParsePrefix("172.16.0.0/12"), Private},
	{netip.MustParsePrefix("192.0.0.0/24"), Reserved},
	{netip.MustParsePrefix("192.0.2.0/24"), Documentation},
	{netip.MustParsePrefix("192.88.99.0/24"), Transition}, // 6to4 relays, RFC 7526
	{netip.MustParsePrefix("192.168.0.0/16"), Private},
	// Metadata, DNS and health probes (Azure), service endpoints (IBM), and APIs that trust the caller's network
	// (Google). Other providers' services have link-local, shared or unique local addresses.
	{netip.MustParsePrefix("161.26.0.0/16"), Platform},
	{netip.MustParsePrefix("166.8.0.0/14"), Platform},
	{netip.MustParsePrefix("168.63.129.16/32"), Platform},
	{netip.MustParsePrefix("199.36.153.4/30"), Platform},
	{netip.MustParsePrefix("199.36.153.8/30"), Platform},
	{netip.MustParsePrefix("198.18.0.0/15"), Benchmarking},
	{netip.MustParsePrefix("198.51.100.0/24"), Documentation},
	{netip.MustParsePrefix("203.0.113.0/24"), Documentation},
	{netip.MustParsePrefix("240.0.0.0/4"), Reserved},

	{netip.MustParsePrefix("::/0"), Reserved},
	{netip.MustParsePrefix("2000::/3"), 0},
	{nat64, 0}, // by the IPv4 address inside
	{netip.MustParsePrefix("64:ff9b:1::/48"), Private},
	{netip.MustParsePrefix("2001::/23"), Reserved}, // protocol assignments, among them Teredo
	{netip.MustParsePrefix("2001:2::/48"), Benchmarking},
	{netip.MustParsePrefix("2001:db8::/32"), Documentation},
	{netip.MustParsePrefix("2600:2d00:2:1000::/64"), Platform}, // Google
	{netip.MustParsePrefix("2600:2d00:2:2000::/64"), Platform},
	{netip.MustParsePrefix("3fff::/20"), Documentation},
	{netip.MustParsePrefix("fc00::/7"), Private},
	{netip.MustParsePrefix("fe80::/10"), LinkLocal},
	{netip.MustParsePrefix("fec0::/10"), Private}, // site-local, RFC 3879
})

func sorted(entries []entry) []entry {
	slices.SortStableFunc(entries, longestFirst)
	return entries
}
