package openvpn

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// session is a member's connection to the server.
type session struct {
	member    string
	remote    netip.AddrPort // source of its packets
	addresses []netip.Prefix // in the tunnel
	peer      uint32         // in its data packets; noPeer until openvpn has said it
	// waits is the notice of its connection, until that is answered: once the peer number is known, so
	// that the guard lets its first packet in.
	waits *clientNotice
}

// Admit lets a member connect with exactly these addresses: at most one of each family, with the
// length of the subnet. A member connected with others must reconnect.
func (s *Server) Admit(member string, addrs []netip.Prefix) error {
	if _, err := pushed(addrs); err != nil {
		return fmt.Errorf("admit %s to OpenVPN: %w", member, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	have, ok := s.admitted[member]
	s.admitted[member] = addrs
	if ok && !slices.Equal(have, addrs) {
		return s.kill(member)
	}
	return nil
}

// Expel ends a member's connection and stops admitting it. A member that is not admitted is no
// error.
func (s *Server) Expel(member string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.admitted, member)
	return s.kill(member)
}

// kill ends a member's sessions and blocks all further packets of theirs at once. openvpn itself keeps
// them for some more seconds.
func (s *Server) kill(member string) error {
	for cid, have := range s.sessions {
		if have.member == member {
			delete(s.sessions, cid)
			s.log.Info("member is disconnected from OpenVPN", "member", member, "remote", have.remote)
			s.post("client-kill %s", cid)
		}
	}
	if err := s.guard.Install(); err != nil {
		return fmt.Errorf("close the guard of OpenVPN's port for %s: %w", member, err)
	}
	return nil
}

// manage handles what openvpn says on its management connection, until that ends (OpenVPN:
// doc/management-notes.txt).
func (s *Server) manage(listener *net.UnixListener) {
	conn, err := listener.Accept()
	if err != nil {
		return
	}
	s.setConn(conn)
	defer s.setConn(nil)
	var notices clientNotices
	var status statusReader
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		line := strings.TrimSuffix(lines.Text(), "\r")
		if text, ok := strings.CutPrefix(line, ">CLIENT:"); ok {
			if c, ok := notices.add(text); ok {
				s.client(c)
			}
		} else if strings.HasPrefix(line, "ERROR:") {
			s.log.Warn("openvpn refuses a command", "says", line)
		} else if row := status.add(line); row.end {
			s.refuseWaiting()
		} else if row.cid != "" {
			s.letIn(row)
		}
	}
}

// setConn replaces the management connection. With another one there are other sessions.
func (s *Server) setConn(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.Close()
	}
	s.conn = conn
	clear(s.sessions)
	if err := s.guard.Install(); err != nil {
		s.log.Warn("cannot close the guard for clients that have gone", "error", err)
	}
}

// commandTime bounds the time that openvpn may take to read a command. It has one thread, which also moves
// packets.
const commandTime = 10 * time.Second

// post sends a command. If that fails, the connection breaks, and openvpn is replaced.
func (s *Server) post(format string, args ...any) {
	s.conn.SetWriteDeadline(time.Now().Add(commandTime))
	if _, err := fmt.Fprintf(s.conn, format+"\n", args...); err != nil {
		s.conn.Close()
	}
}

// client handles a notice about a client.
func (s *Server) client(c clientNotice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return // it comes from an openvpn that has ended
	}
	have := s.sessions[c.cid]
	switch {
	case c.event == "CONNECT":
		s.connect(c)
	case c.event == "REAUTH" && have != nil: // new keys, each hour
		s.post("client-auth-nt %s %s", c.cid, c.kid)
	case c.event == "REAUTH":
		s.deny(c, "not admitted")
	case c.event == "ESTABLISHED" && have != nil:
		s.log.Info("member has connected to OpenVPN", "member", have.member, "remote", have.remote, "addresses", have.addresses)
	case c.event == "DISCONNECT" && have != nil:
		delete(s.sessions, c.cid)
		if err := s.guard.Install(); err != nil {
			s.log.Warn("cannot close the guard for a client that has gone", "error", err)
		}
		s.log.Info("member has disconnected from OpenVPN", "member", have.member, "remote", have.remote)
	}
}

// connect decides on a member whose certificate is valid. It asks for its peer number; letIn goes on
// with the answer.
func (s *Server) connect(c clientNotice) {
	member := c.env["common_name"]
	addrs, ok := s.admitted[member]
	if !ok {
		s.log.Info("member is not admitted to OpenVPN", "member", member)
		s.deny(c, "not admitted")
		return
	}
	remote, err := c.remote()
	if err != nil {
		s.fail(c, err)
		return
	}
	s.sessions[c.cid] = &session{member: member, remote: remote, addresses: addrs, peer: noPeer, waits: &c}
	s.post("status 3")
}

// letIn lets a member in that waits for its peer number.
func (s *Server) letIn(row statusRow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.sessions[row.cid]
	if s.conn == nil || have == nil || have.waits == nil {
		return
	}
	c := *have.waits
	have.peer, have.waits = row.peer, nil
	directives, err := pushed(have.addresses)
	if err == nil {
		err = s.guard.Install()
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.post("client-auth %s %s\n%sEND", c.cid, c.kid, directives)
}

// refuseWaiting refuses the members that still wait when openvpn has listed its clients. Each connected before the list
// was made, so the list should have contained it.
func (s *Server) refuseWaiting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, have := range s.sessions {
		if s.conn != nil && have.waits != nil {
			s.fail(*have.waits, errors.New("openvpn does not say which peer number its data packets carry"))
		}
	}
}

// fail refuses a member because of an error here. An earlier connection of the same client has ended, too.
func (s *Server) fail(c clientNotice, err error) {
	delete(s.sessions, c.cid)
	err = errors.Join(err, s.guard.Install())
	s.log.Warn("cannot let a member in to OpenVPN", "member", c.env["common_name"], "error", err)
	s.deny(c, "fault at the server")
}

func (s *Server) deny(c clientNotice, why string) {
	s.post("client-deny %s %s %q %q", c.cid, c.kid, why, why)
}

// pushed returns the configuration lines that give a client its addresses. OpenVPN forwards only
// packets to and from these addresses.
func pushed(addrs []netip.Prefix) (string, error) {
	var four, six string
	for _, a := range addrs {
		if a.Addr().Is4() {
			four = fmt.Sprintf("ifconfig-push %v %v\n", a.Addr(), net.IP(net.CIDRMask(a.Bits(), 32)))
		} else {
			// The second address would be the server's; dcol's clients ignore it.
			six = fmt.Sprintf("ifconfig-ipv6-push %v %v\n", a, a.Addr())
		}
	}
	if four == "" {
		return "", fmt.Errorf("OpenVPN gives each client an IPv4 address, and %v has none", addrs)
	}
	return four + six, nil
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
	switch {
	case event != "ENV":
		n.open = nil
		cid, kid, _ := strings.Cut(rest, ",")
		// ADDRESS has only one line. Numbers are used in commands, so they must be digits only.
		if _, err := strconv.ParseUint(cid, 10, 64); err == nil && event != "ADDRESS" {
			n.open = &clientNotice{event: event, cid: cid, kid: kid, env: map[string]string{}}
		}
	case n.open == nil:
	case rest == "END":
		whole, n.open = *n.open, nil
		return whole, true
	default:
		name, value, _ := strings.Cut(rest, "=")
		n.open.env[name] = value
	}
	return clientNotice{}, false
}

// statusReader reads the clients' peer numbers from the answer to "status 3": lines with columns separated by tabs. A
// line HEADER names the columns.
type statusReader struct {
	columns   int // of a client's line; 0: no header yet
	cid, peer int // columns
}

// statusRow is a client in a status, or the end of a status.
type statusRow struct {
	cid  string // empty: the line is about something else
	peer uint32
	end  bool
}

func (r *statusReader) add(line string) statusRow {
	fields := strings.Split(line, "\t")
	switch {
	case line == "END":
		*r = statusReader{}
		return statusRow{end: true}
	case fields[0] == "HEADER" && len(fields) > 1 && fields[1] == "CLIENT_LIST":
		names := fields[1:] // A client's line begins with CLIENT_LIST, too.
		*r = statusReader{}
		if cid, peer := slices.Index(names, "Client ID"), slices.Index(names, "Peer ID"); cid > 0 && peer > 0 {
			*r = statusReader{columns: len(names), cid: cid, peer: peer}
		}
	case fields[0] == "CLIENT_LIST" && len(fields) == r.columns:
		cid, err := strconv.ParseUint(fields[r.cid], 10, 64)
		peer, err2 := strconv.ParseUint(fields[r.peer], 10, 32)
		if err == nil && err2 == nil && peer < noPeer {
			return statusRow{cid: strconv.FormatUint(cid, 10), peer: uint32(peer)}
		}
	}
	return statusRow{}
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
			remote, err := netip.ParseAddrPort(net.JoinHostPort(ip, c.env[prefix+"_port"]))
			if err != nil {
				return netip.AddrPort{}, fmt.Errorf("the client's address: %w", err)
			}
			return netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port()), nil
		}
	}
	return netip.AddrPort{}, errors.New("openvpn does not say where the client is")
}
