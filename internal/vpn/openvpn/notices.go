package openvpn

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// stateNotice is a notice ">STATE:time,name,detail,...".
type stateNotice struct{ name, detail string }

func parseState(text string) (stateNotice, bool) {
	fields := strings.Split(text, ",")
	if len(fields) < 2 || fields[1] == "" {
		return stateNotice{}, false
	}
	s := stateNotice{name: fields[1]}
	if len(fields) > 2 {
		s.detail = fields[2]
	}
	return s, true
}

// parseRefusal parses ">PASSWORD:Verification Failed: 'Auth' ['reason']", which openvpn sends when
// the server refuses it, even without passwords.
func parseRefusal(text string) (reason string, ok bool) {
	rest, ok := strings.CutPrefix(text, "Verification Failed: ")
	if !ok {
		return "", false
	}
	if _, reason, ok := strings.Cut(rest, " ['"); ok {
		return strings.TrimSuffix(reason, "']"), true
	}
	return "no reason given", true
}

// parseByteCount parses ">BYTECOUNT:received,sent".
func parseByteCount(text string) (received, sent uint64, ok bool) {
	in, out, _ := strings.Cut(text, ",")
	received, err1 := strconv.ParseUint(in, 10, 64)
	sent, err2 := strconv.ParseUint(out, 10, 64)
	return received, sent, err1 == nil && err2 == nil
}

// clientNotice is a server's notice about a client: a head line, environment lines, and an end.
type clientNotice struct {
	event string // CONNECT, REAUTH, ESTABLISHED, DISCONNECT
	cid   string // the client's number
	kid   string // the key's, with CONNECT and REAUTH
	env   map[string]string
}

// clientNotices assembles notices from lines.
type clientNotices struct{ open *clientNotice }

// add adds the text of one ">CLIENT:" line. It returns true with the last line of a notice.
func (n *clientNotices) add(text string) (whole clientNotice, ok bool) {
	event, rest, _ := strings.Cut(text, ",")
	if event != "ENV" {
		n.open = nil
		cid, kid, _ := strings.Cut(rest, ",")
		// ADDRESS has only one line. Numbers are used in commands, so they must be digits only.
		if isNumber(cid) && event != "ADDRESS" {
			n.open = &clientNotice{event: event, cid: cid, kid: kid, env: map[string]string{}}
		}
		return clientNotice{}, false
	}
	if n.open == nil {
		return clientNotice{}, false
	}
	if rest == "END" {
		whole, n.open = *n.open, nil
		return whole, true
	}
	name, value, _ := strings.Cut(rest, "=")
	n.open.env[name] = value
	return clientNotice{}, false
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

// remote returns the source address of the client's packets.
func (c clientNotice) remote() (netip.AddrPort, error) {
	// "trusted" once the handshake is done, "untrusted" before.
	for _, prefix := range []string{"trusted", "untrusted"} {
		for _, suffix := range []string{"_ip", "_ip6"} {
			ip, ok := c.env[prefix+suffix]
			if !ok {
				continue
			}
			addr, err := netip.ParseAddr(ip)
			if err != nil {
				return netip.AddrPort{}, fmt.Errorf("the client's address: %w", err)
			}
			port, err := strconv.ParseUint(c.env[prefix+"_port"], 10, 16)
			if err != nil {
				return netip.AddrPort{}, fmt.Errorf("the client's port: %w", err)
			}
			return netip.AddrPortFrom(addr.Unmap().WithZone(""), uint16(port)), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("openvpn does not say where the client is")
}

// counters are a client's, by its number.
type counters struct{ received, sent uint64 }

// parseStatus parses the answer to "status 3": lines of fields separated by tabs. The line "HEADER
// CLIENT_LIST" names the columns.
func parseStatus(lines []string) (map[string]counters, error) {
	column := map[string]int{}
	clients := map[string]counters{}
	for _, line := range lines {
		fields := strings.Split(line, "\t")
		switch {
		case len(fields) > 2 && fields[0] == "HEADER" && fields[1] == "CLIENT_LIST":
			for i, name := range fields[2:] {
				column[name] = i + 1
			}
		case fields[0] == "CLIENT_LIST":
			field := func(name string) string {
				if i := column[name]; i > 0 && i < len(fields) {
					return fields[i]
				}
				return ""
			}
			received, err1 := strconv.ParseUint(field("Bytes Received"), 10, 64)
			sent, err2 := strconv.ParseUint(field("Bytes Sent"), 10, 64)
			cid := field("Client ID")
			if err1 != nil || err2 != nil || !isNumber(cid) {
				return nil, fmt.Errorf("openvpn's list of clients has a line that says nothing: %q", line)
			}
			clients[cid] = counters{received: received, sent: sent}
		}
	}
	return clients, nil
}
