package resets

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft/match"
)

// logGroup is the group of the kernel's log (NFLOG) that the table uses. Another program that listens to it keeps the
// Repeater from starting. It is the port number of dcol's sessions, because others are unlikely to use that.
const logGroup = 45672

// mostReset bounds the subflows that are remembered. Resets of more are not repeated.
const mostReset = 1 << 16

var table = nft.Table{Name: "dcol_resets", Owned: true}

// family holds the set for IPv4 or IPv6.
type family struct {
	match.Family
	ended nft.Set // subflows with MP_FASTCLOSE: the client's address and port, and the converter's
}

var families = [2]family{newFamily(match.IPv4, "4"), newFamily(match.IPv6, "6")}

func newFamily(of match.Family, suffix string) family {
	end := []nft.Type{of.Addr, nft.InetService}
	return family{of, nft.Set{Name: "ended" + suffix, Key: slices.Concat(end, end), Timeout: true, Dynamic: true, Size: mostReset}}
}

func install(port uint16) (*nft.Conn, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	err = conn.Commit("install nftables table "+table.Name, func(tx *nft.Tx) {
		tx.AddTable(table)
		for _, f := range families {
			tx.AddSet(table, f.ended)
		}
		tx.AddChains(table, chains(port))
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Names of the chains. A packet that is no reset meets one rule.
const (
	output = "output"
	resets = "resets"
)

// outputPriority comes after all other programs' rules, so that only RSTs count that leave this host.
const outputPriority = 300

func chains(port uint16) []nft.Chain {
	pass := match.Verdict(expr.VerdictReturn, "")
	drop := match.Verdict(expr.VerdictDrop, "")
	log := []expr.Any{nft.Log(logGroup)}
	others := []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: match.Reg, Data: binary.BigEndian.AppendUint16(nil, port)}}
	of := nft.Chain{Name: resets, Rules: [][]expr.Any{match.Rule(match.SourcePort(), others, pass)}}
	for _, f := range families {
		of.Rules = append(of.Rules,
			match.Rule(f.Is(), match.FastClose(), f.Calling(), match.In(f.ended), pass), // the Repeater's own
			match.Rule(f.Is(), match.FastClose(), f.Calling(), match.Put(f.ended, answerFor), log, pass),
			match.Rule(f.Is(), f.Calling(), match.In(f.ended), log, drop))
	}
	return []nft.Chain{
		{
			Name:  output,
			Hook:  &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: outputPriority},
			Rules: [][]expr.Any{match.Rule(match.TCP(), match.Resets(), match.Verdict(expr.VerdictGoto, resets))},
		},
		of,
	}
}
