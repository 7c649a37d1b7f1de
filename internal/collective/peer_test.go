package collective

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestHandshake(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	bobIssue := issue(t, ca, Request{Name: "bob"})
	bob := load(t, install(t, ca, bobIssue))
	alice := load(t, install(t, ca, issue(t, ca, Request{Name: "alice"})))

	atServer, atClient, serverErr, clientErr := handshake(t, bob, alice, "bob")
	if serverErr != nil || clientErr != nil {
		t.Fatal(serverErr, clientErr)
	}
	if atServer != alice.Self() || atClient != bob.Self() || atClient.Serial != bobIssue.Serial {
		t.Fatalf("the server saw %+v, the client %+v", atServer, atClient)
	}

	_, _, _, clientErr = handshake(t, bob, alice, "carol")
	var host x509.HostnameError
	if !errors.As(clientErr, &host) {
		t.Errorf("asked for carol, met bob: %v", clientErr)
	}

	stranger := load(t, install(t, other, issue(t, other, Request{Name: "bob"})))
	_, _, serverErr, clientErr = handshake(t, stranger, alice, "bob")
	var unknown x509.UnknownAuthorityError
	if !errors.As(clientErr, &unknown) {
		t.Errorf("a waypoint of another authority: %v, %v", serverErr, clientErr)
	}
	_, _, serverErr, _ = handshake(t, bob, stranger, "bob")
	if serverErr == nil {
		t.Error("a client of another authority got in")
	}
}

func TestHandshakeWithoutCertificate(t *testing.T) {
	ca := newCA(t)
	bob := load(t, install(t, ca, issue(t, ca, Request{Name: "bob"})))
	if _, err := bob.Peer(tls.ConnectionState{}); err == nil {
		t.Fatal("a peer without a verified chain is a member")
	}
}

func TestRevokedMidway(t *testing.T) {
	ca := newCA(t)
	f := install(t, ca, issue(t, ca, Request{Name: "bob"}))
	bob := load(t, f)
	alice := load(t, install(t, ca, issue(t, ca, Request{Name: "alice"})))
	if _, _, serverErr, clientErr := handshake(t, bob, alice, "bob"); serverErr != nil || clientErr != nil {
		t.Fatal(serverErr, clientErr)
	}
	if _, err := ca.Revoke("alice", PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	copyFile(t, ca.CRLFile(), f.CRL) // no Refresh: the handshake itself must notice
	var revoked *RevokedError
	if _, _, serverErr, _ := handshake(t, bob, alice, "bob"); !errors.As(serverErr, &revoked) || revoked.Name != "alice" {
		t.Errorf("revoked client: %v", serverErr)
	}
	if _, _, _, clientErr := handshake(t, alice, bob, "alice"); !errors.As(clientErr, &revoked) {
		t.Errorf("revoked waypoint: %v", clientErr)
	}
}

func TestExpiryWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newCA(t)
		id := load(t, install(t, ca, issue(t, ca, Request{Name: "alice", Validity: time.Hour})))
		self := id.Self()
		time.Sleep(59 * time.Minute)
		if id.Usable() != nil || id.Check(self) != nil {
			t.Fatal(id.Usable(), id.Check(self))
		}
		time.Sleep(2 * time.Minute)
		if !errors.Is(id.Usable(), ErrExpired) || !errors.Is(id.Check(self), ErrExpired) {
			t.Fatal(id.Usable(), id.Check(self))
		}
	})
}
