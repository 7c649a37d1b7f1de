package rules

import (
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// rejectClosed answers a new connection with a reset while the waypoint is closed.
func rejectClosed(closed nft.Set, m Marks) rule {
	return rule{
		text: fmt.Sprintf("meta l4proto tcp ct mark & %#x @%s counter reject with tcp reset", m.ours(), closed.Name),
		exprs: slices.Concat(
			isTransportTCP(),
			[]expr.Any{
				&expr.Ct{Key: expr.CtKeyMARK, Register: reg},
				masked(m.ours()),
				&expr.Lookup{SourceRegister: reg, SetName: closed.Name},
				&expr.Counter{},
				&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
			},
		),
	}
}

// rejectStopped answers a new connection of a stopped member with a reset.
func rejectStopped(stopped nft.Set, m Marks) rule {
	return rule{
		text: fmt.Sprintf("meta l4proto tcp ct mark & %#x @%s counter reject with tcp reset", m.members(), stopped.Name),
		exprs: slices.Concat(
			isTransportTCP(),
			loadMember(m),
			[]expr.Any{
				&expr.Lookup{SourceRegister: reg, SetName: stopped.Name},
				&expr.Counter{},
				&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
			},
		),
	}
}

// rateBurst is the burst of new connections in seconds of the rate: browsers open many at once.
const rateBurst = 4

// limitRate drops SYNs over the member's rate. A reset would end the subflow and make the client consider the waypoint
// broken. A dropped SYN is sent again after a second.
func limitRate(set nft.Set, m Marks, rate int) rule {
	return rule{
		text: fmt.Sprintf("meta l4proto tcp update @%s { ct mark & %#x limit rate over %d/second burst %d packets } counter drop",
			set.Name, m.members(), rate, rateBurst*rate),
		exprs: slices.Concat(
			isTransportTCP(),
			loadMember(m),
			[]expr.Any{
				&expr.Dynset{SrcRegKey: reg, SetName: set.Name, Operation: unix.NFT_DYNSET_OP_UPDATE,
					Exprs: []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(rate), Unit: expr.LimitTimeSecond,
						Burst: uint32(rateBurst * rate), Over: true}}},
				&expr.Counter{},
				&expr.Verdict{Kind: expr.VerdictDrop},
			},
		),
	}
}

// limitConnections answers a connection over the member's limit with a reset, so that the client notices at once and
// continues on its direct path.
func limitConnections(set nft.Set, m Marks, count int) rule {
	return rule{
		text: fmt.Sprintf("meta l4proto tcp add @%s { ct mark & %#x ct count over %d } counter reject with tcp reset",
			set.Name, m.members(), count),
		exprs: slices.Concat(
			isTransportTCP(),
			loadMember(m),
			[]expr.Any{
				&expr.Dynset{SrcRegKey: reg, SetName: set.Name, Operation: unix.NFT_DYNSET_OP_ADD,
					Exprs: []expr.Any{&expr.Connlimit{Count: uint32(count), Flags: expr.NFT_CONNLIMIT_F_INV}}},
				&expr.Counter{},
				&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
			},
		),
	}
}

// limitBandwidth drops a member's packets over its rate, in both directions. TCP treats that as congestion.
func limitBandwidth(set nft.Set, m Marks, rate int64) rule {
	return rule{
		text: fmt.Sprintf("update @%s { ct mark & %#x limit rate over %d bytes/second burst %d bytes } counter drop",
			set.Name, m.members(), rate, burst(rate)),
		exprs: append(loadMember(m),
			&expr.Dynset{SrcRegKey: reg, SetName: set.Name, Operation: unix.NFT_DYNSET_OP_UPDATE,
				Exprs: []expr.Any{over(rate)}},
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		),
	}
}

// The directions of a connection: from the client, and to it.
var (
	original = direction{"original", 0} // IP_CT_DIR_ORIGINAL
	reply    = direction{"reply", 1}
)

type direction struct {
	name   string
	number byte
}

// limitTotal drops packets over the rate of all members together, in one direction.
func limitTotal(d direction, rate int64) rule {
	return rule{
		text: fmt.Sprintf("ct direction %s limit rate over %d bytes/second burst %d bytes counter drop", d.name, rate, burst(rate)),
		exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg},
			equal([]byte{d.number}),
			over(rate),
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		},
	}
}

// minBurst allows at least two of the largest packets that segmentation offload makes.
const minBurst = 128 << 10

// burst returns the bytes of a tenth of a second.
func burst(rate int64) int64 { return max(rate/10, minBurst) }

func over(rate int64) *expr.Limit {
	return &expr.Limit{Type: expr.LimitTypePktBytes, Rate: uint64(rate), Unit: expr.LimitTimeSecond, Burst: uint32(burst(rate)), Over: true}
}

func gotoChain(chain string) rule {
	return rule{text: "goto " + chain, exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}}
}

// limitQuota counts forwarded packets, including ICMP errors of connections. Packets beyond the quota go to another chain.
func limitQuota(quota, used uint64, beyond string) rule {
	return rule{
		text: fmt.Sprintf("quota over %d bytes used %d bytes goto %s", quota, used, beyond),
		exprs: []expr.Any{
			&expr.Quota{Bytes: quota, Consumed: used, Over: true},
			&expr.Verdict{Kind: expr.VerdictGoto, Chain: beyond},
		},
	}
}

// loadMember loads the key of the limits: the part of the mark that is the same for all kinds of detours.
func loadMember(m Marks) []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeyMARK, Register: reg}, masked(m.members())}
}

func isTransportTCP() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, equal([]byte{unix.IPPROTO_TCP})}
}
