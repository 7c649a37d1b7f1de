package openvpn

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

// session is a member's connection to the server.
type session struct {
	process     *process
	member      string
	remote      netip.AddrPort
	addresses   []netip.Prefix
	established time.Time // zero: not yet
	killed      bool      // openvpn keeps it for some more seconds
}

// ClientState describes a connected member.
type ClientState struct {
	Member         string
	Remote         netip.AddrPort // source of its packets
	Addresses      []netip.Prefix // its addresses in the tunnel
	Since          time.Time
	Received, Sent uint64 // in bytes, counted by the server
}

// memberName matches valid member names. They are used in commands to openvpn.
var memberName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$`)

// Admit lets a member connect with exactly these addresses: at most one of each family, with the
// length of the subnet. A member connected with others must reconnect.
func (s *Server) Admit(member string, addrs []netip.Prefix) error {
	if !memberName.MatchString(member) {
		return fmt.Errorf("admit %q to OpenVPN: this cannot be a member's name", member)
	}
	if _, err := pushed(addrs); err != nil {
		return fmt.Errorf("admit %s to OpenVPN: %w", member, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, have := range s.admitted {
		for _, a := range addrs {
			if other != member && slices.ContainsFunc(have, func(p netip.Prefix) bool { return p.Addr() == a.Addr() }) {
				return fmt.Errorf("admit %s to OpenVPN: %v is %s's address", member, a.Addr(), other)
			}
		}
	}
	have, ok := s.admitted[member]
	s.admitted[member] = slices.Clone(addrs)
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
	if err := s.kill(member); err != nil {
		return fmt.Errorf("expel %s from OpenVPN: %w", member, err)
	}
	return nil
}

// kill ends a member's sessions and blocks all further packets of theirs. A notice reports when
// openvpn itself has removed them.
func (s *Server) kill(member string) error {
	for cid, have := range s.sessions {
		if have.member == member && !have.killed {
			have.killed = true
			have.process.management.post("client-kill " + cid)
		}
	}
	return s.setGuard()
}

// setGuard admits the packets of the current sessions.
func (s *Server) setGuard() error {
	remotes := map[netip.AddrPort]struct{}{}
	for _, have := range s.sessions {
		if !have.killed {
			remotes[have.remote] = struct{}{}
		}
	}
	return s.guard.keep(remotes)
}

// Clients returns the connected members, sorted by name.
func (s *Server) Clients() ([]ClientState, error) {
	s.mu.Lock()
	clients := map[string]ClientState{}
	var p *process
	for cid, have := range s.sessions {
		if !have.established.IsZero() && !have.killed {
			p = have.process
			clients[cid] = ClientState{Member: have.member, Remote: have.remote, Addresses: have.addresses, Since: have.established}
		}
	}
	s.mu.Unlock()
	if p == nil {
		return nil, nil
	}
	lines, err := p.management.ask(context.Background(), "status 3", true)
	if err != nil {
		return nil, fmt.Errorf("list OpenVPN's clients: %w", err)
	}
	counts, err := parseStatus(lines)
	if err != nil {
		return nil, err
	}
	list := make([]ClientState, 0, len(clients))
	for cid, c := range clients {
		c.Received, c.Sent = counts[cid].received, counts[cid].sent
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b ClientState) int {
		return cmp.Or(strings.Compare(a.Member, b.Member), a.Since.Compare(b.Since))
	})
	return list, nil
}

// client handles a notice about a client.
func (s *Server) client(p *process, c clientNotice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch c.event {
	case "CONNECT":
		s.connect(p, c)
	case "REAUTH": // new keys, each hour
		if have := s.sessions[c.cid]; have != nil && s.mayStay(have) {
			p.management.post("client-auth-nt " + c.cid + " " + c.kid)
			return
		}
		s.deny(p, c, "not admitted")
	case "ESTABLISHED":
		if have := s.sessions[c.cid]; have != nil {
			have.established = time.Now()
			s.log.Info("member has connected to OpenVPN", "member", have.member, "remote", have.remote, "addresses", have.addresses)
		}
	case "DISCONNECT":
		s.disconnect(c.cid)
	}
}

func (s *Server) mayStay(have *session) bool {
	addrs, ok := s.admitted[have.member]
	return ok && slices.Equal(addrs, have.addresses)
}

// connect decides on a member whose certificate is valid.
func (s *Server) connect(p *process, c clientNotice) {
	member := c.env["common_name"]
	addrs, ok := s.admitted[member]
	if !ok {
		s.log.Info("member is not admitted to OpenVPN", "member", member)
		s.deny(p, c, "not admitted")
		return
	}
	directives, err := pushed(addrs)
	var remote netip.AddrPort
	if err == nil {
		remote, err = c.remote()
	}
	if err == nil {
		err = s.guard.admit(remote)
	}
	if err != nil {
		s.log.Warn("cannot let a member in to OpenVPN", "member", member, "error", err)
		s.deny(p, c, "fault at the server")
		return
	}
	s.sessions[c.cid] = &session{process: p, member: member, remote: remote, addresses: addrs}
	p.management.post(fmt.Sprintf("client-auth %s %s\n%sEND", c.cid, c.kid, directives))
}

func (s *Server) deny(p *process, c clientNotice, why string) {
	p.management.post(fmt.Sprintf("client-deny %s %s %q %q", c.cid, c.kid, why, why))
}

func (s *Server) disconnect(cid string) {
	have := s.sessions[cid]
	if have == nil {
		return
	}
	delete(s.sessions, cid)
	if err := s.setGuard(); err != nil {
		s.log.Warn("cannot close the guard for a client that has gone", "error", err)
	}
	s.log.Info("member has disconnected from OpenVPN", "member", have.member, "remote", have.remote)
}

// pushed returns the configuration lines that give a client its addresses. OpenVPN forwards only
// packets to and from these addresses.
func pushed(addrs []netip.Prefix) (string, error) {
	var four, six string
	for _, a := range addrs {
		switch addr := a.Addr(); {
		case !a.IsValid() || addr.Zone() != "" || addr.Is4In6():
			return "", fmt.Errorf("%v is no address", a)
		case addr.Is4() && four == "":
			four = fmt.Sprintf("ifconfig-push %v %v\n", addr, net.IP(net.CIDRMask(a.Bits(), 32)))
		case addr.Is6() && six == "":
			// The second address would be the server's; dcol's clients ignore it.
			six = fmt.Sprintf("ifconfig-ipv6-push %v %v\n", a, addr)
		default:
			return "", fmt.Errorf("OpenVPN gives a client one address of each family, not %v", addrs)
		}
	}
	if four == "" {
		return "", fmt.Errorf("OpenVPN gives each client an IPv4 address, and %v has none", addrs)
	}
	return four + six, nil
}
