package present

import (
	"fmt"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

// replyNotes describes what is odd about the options of the server's SYN+ACK.
func replyNotes(p *trace.Path) (notes []string) {
	if p.Answer == nil {
		return nil
	}
	r, ok := p.Probe.Reply(p.Answer.Packet)
	if !ok {
		return nil
	}
	// What was removed on the way there cannot be answered.
	open := slices.DeleteFunc(slices.Clone(r.Unanswered), func(f compare.Field) bool {
		return slices.ContainsFunc(p.Findings, func(g compare.Finding) bool { return g.Field == f && g.Kind() == compare.Removed })
	})
	if len(open) > 0 {
		notes = append(notes, fmt.Sprintf("the SYN+ACK does not answer %s: the server does not use all that it was offered, or it is removed behind the last router that quotes everything, or on the way back.", listed(open)))
	}
	if len(r.Unasked) > 0 {
		notes = append(notes, fmt.Sprintf("the SYN+ACK has %s, which the SYN had not: something added that.", listed(r.Unasked)))
	}
	if r.Echoed {
		notes = append(notes, "the SYN+ACK has MP_CAPABLE without a key: the server, or something before it, repeats options that it does not understand. It does not speak MPTCP.")
	}
	return append(notes, sizeNotes(p, r)...)
}

// sizeNotes compares the segment size of the SYN+ACK with the largest one on an Ethernet of 1500 bytes.
func sizeNotes(p *trace.Path, r compare.Reply) []string {
	usual := uint16(1460)
	if p.Destination.Is6() {
		usual = 1440
	}
	switch {
	case r.MSS == 0:
		return []string{"the SYN+ACK has no MSS: the server did not send one, or it was removed on the way back."}
	case r.MSS < usual && (r.SentMSS == 0 || r.MSS < r.SentMSS):
		return []string{fmt.Sprintf("the SYN+ACK's MSS is %d, less than the %d of Ethernet: the server has a smaller link, or a router on the way back lowers the MSS.", r.MSS, usual)}
	}
	return nil
}

func listed(fields []compare.Field) string {
	var labels []string
	for _, f := range fields {
		labels = append(labels, Label(f))
	}
	if n := len(labels); n > 1 {
		return strings.Join(labels[:n-1], ", ") + " and " + labels[n-1]
	}
	return labels[0]
}
