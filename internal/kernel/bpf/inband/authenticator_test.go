package inband

import (
	"net/netip"
	"testing"
)

// Of the test vectors that come with the reference implementation.
func TestSipHash(t *testing.T) {
	var key Key
	for i := range key {
		key[i] = byte(i)
	}
	message := make([]byte, 64)
	for i := range message {
		message[i] = byte(i)
	}
	for size, want := range map[int]uint64{
		0:  0x726fdb47dd0e0e31,
		1:  0x74f839c593dc67fd,
		7:  0xab0200f58b01d137,
		8:  0x93f5f5799a932462,
		15: 0xa129ca6149be45e5,
		63: 0x958a324ceb064572,
	} {
		if got := sipHash(key, message[:size]); got != want {
			t.Errorf("of %d bytes: %#x, want %#x", size, got, want)
		}
	}
}

// Every field that the authenticator is to cover changes it.
func TestAuthenticatorCovers(t *testing.T) {
	type syn struct {
		join       Join
		auth       Auth
		seq, tsval uint32
	}
	base := syn{
		join:  Join{Local: clientPort, Remote: waypointPort, Server: serverAddr},
		auth:  Auth{Key: Key{1, 2, 3}, Client: clientPort.Addr(), ClientPort: true},
		seq:   1,
		tsval: 2,
	}
	of := func(s syn) uint32 {
		s.join.Auth = &s.auth
		return Authenticator(s.join, s.seq, s.tsval)
	}
	for name, change := range map[string]func(*syn){
		"key":                 func(s *syn) { s.auth.Key[15] = 1 },
		"client":              func(s *syn) { s.auth.Client = serverAddr },
		"client port":         func(s *syn) { s.join.Local = netip.AddrPortFrom(s.join.Local.Addr(), 1) },
		"client port covered": func(s *syn) { s.auth.ClientPort = false },
		"server":              func(s *syn) { s.join.Server = clientPort.Addr() },
		"server port":         func(s *syn) { s.join.Remote = netip.AddrPortFrom(s.join.Remote.Addr(), 80) },
		"sequence number":     func(s *syn) { s.seq++ },
		"TSval":               func(s *syn) { s.tsval++ },
	} {
		changed := base
		change(&changed)
		if of(changed) == of(base) {
			t.Errorf("%s is not covered", name)
		}
	}
	// What a NAT between the two may change is not.
	nat := base
	nat.join.Local = netip.MustParseAddrPort("192.168.1.2:40000")
	nat.join.Remote = netip.MustParseAddrPort("192.0.2.1:443")
	if of(nat) != of(base) {
		t.Error("addresses that a NAT rewrites are covered")
	}
}
