package recipe

import "strconv"

// links describes kinds of links by their MTU, behind an Ethernet of 1500 bytes.
var links = map[int]string{
	1492: "PPPoE's (RFC 2516)",
	1480: "that of tunnels in IPv4 without a header of their own: 6in4, 6rd and IPIP (RFC 4213, 5969 and 2003)",
	1476: "that of GRE in IPv4 (RFC 2784)",
	1460: "that of tunnels in IPv6: DS-Lite (RFC 6333)",
	1420: "WireGuard's by default",
	1280: "the least that IPv6 allows (RFC 8200), which tunnels take to be safe",
}

// leastLink names the link for which a maximum segment size was chosen, or "" for no known link. Headers of IP and TCP
// take 40 bytes, or 60 with IPv6 (RFC 6691).
func leastLink(mss string, six bool) (mtu int, link string) {
	size, err := strconv.Atoi(mss)
	if err != nil {
		return 0, ""
	}
	mtu = size + 40
	if six {
		mtu = size + 60
	}
	return mtu, links[mtu]
}
