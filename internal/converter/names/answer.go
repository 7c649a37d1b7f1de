// Package names finds the addresses of chosen names. It looks in DNS answers that arrive at this host over UDP, and in
// the ClientHellos of TLS. It does not see answers that are encrypted or come over TCP. It cannot tell whether an
// answer is true: whoever can send a packet to this host can forge one.
//
//	watch.go   Watcher receives DNS answers
//	answer.go  the addresses in an answer
//	hello.go   the server's name in a ClientHello
package names

import (
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// mostRecords bounds the records of one answer that are read.
	mostRecords = 128
	// leastTime and mostTime limit the time for which an address counts, whatever its record says.
	leastTime = time.Minute
	mostTime  = 24 * time.Hour
)

// Address is an address of a name that matches, with the time for which it counts.
type Address struct {
	Addr netip.Addr
	Name string // that matches, in lower case and without the last dot
	For  time.Duration
}

// Addresses returns the addresses in a DNS answer that belong to matching names, or to names of which these are aliases
// (CNAME). match gets names in lower case, without the last dot. Records after a malformed one are ignored.
func Addresses(message []byte, match func(name string) bool) []Address {
	var p dnsmessage.Parser
	header, err := p.Start(message)
	if err != nil || !header.Response || header.RCode != dnsmessage.RCodeSuccess || p.SkipAllQuestions() != nil {
		return nil
	}
	type record struct {
		owner string
		Address
	}
	var found []record
	aliases := map[string]string{} // by alias
	for range mostRecords {
		h, err := p.AnswerHeader()
		if err != nil {
			break
		}
		lasts := min(max(time.Duration(h.TTL)*time.Second, leastTime), mostTime)
		add := func(a netip.Addr) { found = append(found, record{nameOf(h.Name), Address{Addr: a, For: lasts}}) }
		switch {
		case h.Class == dnsmessage.ClassINET && h.Type == dnsmessage.TypeA:
			var r dnsmessage.AResource
			if r, err = p.AResource(); err == nil {
				add(netip.AddrFrom4(r.A))
			}
		case h.Class == dnsmessage.ClassINET && h.Type == dnsmessage.TypeAAAA:
			var r dnsmessage.AAAAResource
			if r, err = p.AAAAResource(); err == nil {
				add(netip.AddrFrom16(r.AAAA).Unmap())
			}
		case h.Class == dnsmessage.ClassINET && h.Type == dnsmessage.TypeCNAME:
			var r dnsmessage.CNAMEResource
			if r, err = p.CNAMEResource(); err == nil {
				aliases[nameOf(h.Name)] = nameOf(r.CNAME)
			}
		default:
			err = p.SkipAnswer()
		}
		if err != nil {
			break
		}
	}
	chosen := make(map[string]string) // the alias that matches, by name
	for alias := range aliases {
		if !match(alias) {
			continue
		}
		for name, is := aliases[alias], true; is && chosen[name] == ""; name, is = aliases[name] {
			chosen[name] = alias
		}
	}
	var list []Address
	for _, r := range found {
		if r.Name = r.owner; !match(r.owner) {
			r.Name = chosen[r.owner]
		}
		if r.Name != "" {
			list = append(list, r.Address)
		}
	}
	return list
}

func nameOf(n dnsmessage.Name) string { return strings.ToLower(strings.TrimSuffix(n.String(), ".")) }
