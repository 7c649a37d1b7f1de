package openvpn

import (
	"testing"
)

func TestTwoClients(t *testing.T) {
	n := newNetwork(t)
	s := n.serve()
	echo(t, n.bob, "10.77.0.1:7")
	echo(t, n.bob, "[fd77::1]:7")
	if err := s.Admit("alice", aliceIn); err != nil {
		t.Fatal(err)
	}
	if err := s.Admit("carol", carolIn); err != nil {
		t.Fatal(err)
	}
	alice := n.connect(n.alice, n.clientConfig("alice", bobAtAlice), aliceIn)
	carol := n.connect(n.carol, n.clientConfig("carol", bobAtCarol), carolIn)
	alice.until(Connected)
	carol.until(Connected)
	works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
	works(t, n.alice, aliceIn[1].Addr(), "[fd77::1]:7")
	works(t, n.carol, carolIn[0].Addr(), "10.77.0.1:7")

	clients, err := s.Clients()
	if err != nil {
		t.Fatal(err)
	}
	if len(clients) != 2 || clients[0].Member != "alice" || clients[1].Member != "carol" {
		t.Fatalf("clients: %+v", clients)
	}
	if c := clients[0]; c.Remote.Addr().String() != "192.0.2.2" || c.Received < 200_000 || c.Sent < 200_000 {
		t.Errorf("alice: %+v", c)
	}
	t.Log(n.bob.Output(t, "nft", "list", "ruleset"))
}
