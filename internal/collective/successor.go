package collective

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// Successor makes a second root in a new directory, stated by this one, and tells both directories: from
// now on ca.crt of either has both. The way on:
//
//  1. Every member gets both files anew (TakeTrust). Those that have not are known by the old root only.
//  2. After that the new root, or a signer of it, signs; members renew.
//  3. When all that the old root and its signers have signed is over, DropOthers.
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
	// The new directory first: if only that comes to be, the old one goes on as if nothing had been.
	if err := next.create(both); err != nil {
		return nil, err
	}
	if err := both.write(ca.CertFile(), ca.CRLFile(), t, true); err != nil {
		return nil, err
	}
	return next, nil
}

// DropOthers states that this root is the only one from now on. What others have signed ends with it, at
// each member as soon as it has the new ca.crt; nothing can bring them back. Only a root can.
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
