package plan

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Kind is a kind of fault.
type Kind string

// Faults of links.
const (
	LinkDown  Kind = "link-down"  // loses everything
	LinkSlow  Kind = "link-slow"  // Amount is the share of the rate that is left
	LinkDelay Kind = "link-delay" // Amount multiplies the delay
	LinkLoss  Kind = "link-loss"  // Amount is the share that is lost
	LinkBurst Kind = "link-burst" // Amount is the probability that a burst of losses begins
	// LinkReorder and LinkDuplicate reorder and duplicate a share of packets.
	LinkReorder   Kind = "link-reorder"
	LinkDuplicate Kind = "link-duplicate"
	LinkCorrupt   Kind = "link-corrupt" // flips bits: the checksums of TCP and UDP notice
	// LinkTamper changes payload and corrects TCP's checksum. It strikes only detours, and only if MPTCP's checksums are on:
	// nothing else can detect the change, and plain TCP cannot either.
	LinkTamper Kind = "link-tamper"
	// TamperReplies is LinkTamper in the direction to the client only. The server does not see the change, so the client
	// cannot learn of it from the way in which the server ends a subflow.
	TamperReplies Kind = "tamper-replies"
)

// Spoils reports whether the kind makes dcol avoid a waypoint for longer than a sequence takes. Only one waypoint of a
// world is struck by such kinds.
func (k Kind) Spoils() bool {
	return k == LinkTamper || k == TamperReplies || k == DropTCP || k == Swallow
}

// Faults of waypoints, processes and addresses.
const (
	// DropTCP makes a waypoint drop all TCP that it forwards, while its sessions live.
	DropTCP Kind = "drop-tcp"
	// Swallow is DropTCP that ends only after the check.
	Swallow Kind = "swallow"
	Freeze  Kind = "freeze" // SIGSTOP, later SIGCONT
	// Kill, Stop and Hangup send SIGKILL, SIGTERM and SIGHUP. A process that ends is started again after For.
	Kill   Kind = "kill"
	Stop   Kind = "stop"
	Hangup Kind = "hangup"
	// Renumber gives the client another address, after For without any.
	Renumber   Kind = "renumber"
	FlushRules Kind = "flush-rules" // nft flush ruleset
	// Sysctl sets a kernel parameter, as administrators and other programs do. Plain TCP works with each value.
	Sysctl Kind = "sysctl"
	// RestartNAT makes the client's NAT forget all connections, and drop everything for For.
	RestartNAT Kind = "restart-nat"
)

// Attacks.
const (
	// LieAgain makes the world's lying waypoint end its sessions and lie again.
	LieAgain Kind = "lie"
	// ForgeSYN sends SYNs from the client's address to the ports of a waypoint that receive in-band SYNs.
	ForgeSYN Kind = "forge-syn"
	// BlindRST sends resets of all the client's subflows with random sequence numbers.
	BlindRST Kind = "blind-rst"
	// Scan opens connections through a waypoint as fast as it can, as a member.
	Scan Kind = "scan"
	// AskTunnels asks for thousands of tunnels, as a member.
	AskTunnels Kind = "ask-tunnels"
	// Flood sends noise and SYNs to an agent's ports, as a stranger.
	Flood Kind = "flood"
)

// Target selects what a fault strikes. Which waypoint carries most is known only when the fault strikes.
type Target string

// The targets.
const (
	Access      Target = "access"      // the client's link
	Direct      Target = "direct"      // the direct path's own link
	BusyIn      Target = "busy-in"     // the link from the client to the waypoint that carries most
	BusyOut     Target = "busy-out"    // its link to the server
	Busy        Target = "busy"        // that waypoint
	Client      Target = "client"      // the client, or its agent
	Coordinator Target = "coordinator" // the coordinator's agent
	Router      Target = "router"      // the client's NAT
	Converter   Target = "converter"   // the converter, or its agent
	Server      Target = "server"      // the server's host
)

// span is a range to draw from.
type span struct{ low, high float64 }

func (s span) draw(r *rand.Rand) float64 { return s.low + (s.high-s.low)*r.Float64() }

// seconds draws a time, to the hundredth of a second.
func (s span) seconds(r *rand.Rand) time.Duration {
	return time.Duration(s.draw(r)*100) * 10 * time.Millisecond
}

// rule limits where a kind of fault strikes, for how long, and how hard.
type rule struct {
	weight  int // how often it strikes beside others; 0: once
	fits    func(World) bool
	targets func(World) []Target
	lasts   span // seconds
	amount  span
	// settings are the kernel parameters to choose from, by target.
	settings map[Target][]string
}

// Kernel parameters that change how an end sends, or how a host filters.
var (
	ofEnds = []string{
		"net.ipv4.tcp_sack=0", "net.ipv4.tcp_timestamps=0", "net.ipv4.tcp_ecn=1", "net.ipv4.tcp_congestion_control=reno",
		"net.ipv4.tcp_mtu_probing=2", "net.mptcp.checksum_enabled=1", "net.mptcp.stale_loss_cnt=0",
	}
	ofFilters = []string{
		"net.ipv4.conf.all.rp_filter=1", "net.netfilter.nf_conntrack_tcp_be_liberal=0", "net.netfilter.nf_conntrack_tcp_loose=0",
		"net.ipv4.conf.all.send_redirects=1",
	}
)

func always(World) bool     { return true }
func emulated(w World) bool { return w.Emulated }
func checked(w World) bool  { return w.Emulated && w.Checksums }

func only(targets ...Target) func(World) []Target {
	return func(World) []Target { return targets }
}

func processes(w World) []Target {
	switch {
	case w.Coordinator:
		return []Target{Client, Busy, Busy, Coordinator}
	case w.Converter != "":
		return []Target{Client, Busy, Converter}
	}
	return []Target{Client, Busy}
}

// flushable are the hosts whose rules may go without breaking a connection. A gateway leads packets to its relay by rules:
// until they are back, the LAN's hosts talk to servers that know nothing of their connections.
func flushable(w World) []Target {
	switch w.Converter {
	case ByGateway:
		return []Target{Busy, Converter}
	case ByProxy:
		return []Target{Busy, Client, Converter}
	}
	return []Target{Busy, Client}
}

// readable are the links of a waypoint over which TCP goes as it is: where a tunnel is
// preferred, the one behind it.
func readable(w World) []Target {
	if len(w.Kinds) > 0 && (w.Kinds[0] == "wireguard" || w.Kinds[0] == "openvpn") {
		return []Target{BusyOut}
	}
	return []Target{BusyIn, BusyOut}
}

var links = only(Access, Direct, Direct, BusyIn, BusyOut)

var rules = map[Kind]rule{
	LinkDown:      {fits: always, targets: links, lasts: span{0.2, 4}},
	LinkSlow:      {fits: emulated, targets: only(Direct, BusyIn, BusyOut), lasts: span{1, 5}, amount: span{0.1, 0.5}},
	LinkDelay:     {fits: emulated, targets: links, lasts: span{1, 5}, amount: span{2, 10}},
	LinkLoss:      {fits: emulated, targets: links, lasts: span{1, 5}, amount: span{0.01, 0.3}},
	LinkBurst:     {fits: emulated, targets: links, lasts: span{1, 5}, amount: span{0.002, 0.05}},
	LinkReorder:   {fits: emulated, targets: links, lasts: span{1, 5}, amount: span{0.01, 0.3}},
	LinkDuplicate: {fits: emulated, targets: links, lasts: span{1, 5}, amount: span{0.01, 0.3}},
	LinkCorrupt:   {fits: emulated, targets: links, lasts: span{1, 5}, amount: span{0.001, 0.1}},
	LinkTamper:    {weight: 2, fits: checked, targets: readable, lasts: span{1, 5}, amount: span{0.01, 0.5}},
	TamperReplies: {weight: 5, fits: checked, targets: readable, lasts: span{1, 5}, amount: span{0.05, 0.5}},
	DropTCP:       {fits: always, targets: only(Busy), lasts: span{1, 6}},
	Swallow:       {weight: 2, fits: always, targets: only(Busy)},
	Freeze:        {fits: always, targets: processes, lasts: span{0.5, 5}},
	Kill:          {fits: always, targets: processes, lasts: span{0.1, 2}},
	Stop:          {fits: always, targets: processes, lasts: span{0.1, 2}},
	Hangup:        {fits: always, targets: processes, lasts: span{0.1, 1}},
	Renumber:      {fits: func(w World) bool { return !w.NAT && w.Converter != ByGateway }, targets: only(Client), lasts: span{0, 2}},
	FlushRules:    {fits: always, targets: flushable},
	Sysctl: {weight: 2, fits: always, targets: only(Client, Busy, Server), lasts: span{1, 5}, settings: map[Target][]string{
		Client: append([]string{"net.ipv4.conf.all.rp_filter=1"}, ofEnds...), Busy: ofFilters, Server: ofEnds,
	}},
	RestartNAT: {fits: func(w World) bool { return w.NAT }, targets: only(Router), lasts: span{0.1, 1}},
	LieAgain:   {fits: func(w World) bool { return w.Liar != "" }, targets: only(Client)},
	ForgeSYN:   {fits: func(w World) bool { return slices.Contains(w.Kinds, inBand) }, targets: only(Busy)},
	BlindRST:   {fits: always, targets: only(Busy)},
	Scan:       {fits: always, targets: only(Busy), lasts: span{0.5, 2}},
	AskTunnels: {fits: func(w World) bool { return slices.Contains(w.Kinds, "wireguard") }, targets: only(Busy), lasts: span{0.5, 2}},
	Flood:      {fits: always, targets: only(Busy, Client), lasts: span{0.5, 2}},
}

// Kinds lists the kinds of faults that can happen in a world, in a fixed order.
func Kinds(w World) []Kind {
	var all []Kind
	for k, rule := range rules {
		if rule.fits(w) {
			all = append(all, k)
		}
	}
	slices.Sort(all)
	return all
}
