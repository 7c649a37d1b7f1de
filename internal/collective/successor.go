package collective

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// Successor creates a second root in a new directory, with a statement by this root. Then ca.crt in both
// directories has both roots. The next steps:
//
//  1. Copy both files to every member (TakeTrust). Members without them know only the old root.
//  2. Then sign with the new root, or a signer of it. Members renew their certificates.
//  3. When everything that the old root and its signers have signed has expired, call DropOthers.
func (ca *CA) Successor(dir string) (*CA, error) {
	t, unlock, err := ca.beside(dir, "make a new root")
	if err != nil {
		return nil, err
	}
	defer unlock()
	next, err := newRoot(dir, ca.Name())
	if err != nil {
		return nil, err
	}
	roots, err := t.roots.state(append([]*x509.Certificate{next.cert}, t.roots.certs...), ca.key, time.Now())
	if err != nil {
		return nil, err
	}
	lists, err := next.firstList(t.lists)
	if err != nil {
		return nil, err
	}
	both := newTrust(roots, lists)
	// The new directory is first: if only that succeeds, the old one remains unchanged.
	if err := next.create(both); err != nil {
		return nil, err
	}
	if err := both.write(ca.CertFile(), ca.CRLFile(), t, true); err != nil {
		return nil, err
	}
	return next, nil
}

// DropOthers states that this root is the only one from now on. At a member with the new ca.crt, certificates that the
// other roots have signed are no longer valid. This cannot be undone. ca must be a root.
func (ca *CA) DropOthers() error {
	if err := ca.mustBeRoot("drop the other roots"); err != nil {
		return err
	}
	unlock, err := durable.Lock(ca.dir)
	if err != nil {
		return err
	}
	defer unlock()
	t, err := ca.Trust()
	if err != nil {
		return err
	}
	if len(t.roots.certs) == 1 {
		return fmt.Errorf("drop the other roots: %s has only this one", ca.Name())
	}
	roots, err := t.roots.state([]*x509.Certificate{ca.cert}, ca.key, time.Now())
	if err != nil {
		return err
	}
	return newTrust(roots, t.lists.of(roots)).write(ca.CertFile(), ca.CRLFile(), t, true)
}
