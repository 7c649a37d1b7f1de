package collective

import (
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// A member writes received updates to its files, so that they survive a restart. Roots and lists take effect
// even if they cannot be written. Every update is verified, so its sender need not be trusted.

// TakeTrust applies newer roots and revocation lists (contents of ca.crt and ca.crl; either may be empty). New roots
// must be signed by a known one. changed reports whether anything was new. It also repairs damaged files.
func (id *Identity) TakeTrust(roots, lists []byte) (changed bool, err error) {
	if id.files.CRL == "" {
		return false, &Error{File: id.files.CA, Problem: "new roots and lists cannot be used without a file for revocation lists", Fix: "name one in the configuration (identity.crl)"}
	}
	id.taking.Lock()
	defer id.taking.Unlock()
	known := id.Trust()
	next, newRoots, newLists, err := known.follow(roots, lists)
	if err != nil {
		return false, err
	}
	changed = newRoots || newLists
	switch {
	case changed:
		err = next.write(id.files.CA, id.files.CRL, known, newRoots)
	case known.lostIn(id.files):
		err = known.write(id.files.CA, id.files.CRL, known, true)
	}
	if changed && err != nil {
		// A full disk must not delay an expulsion.
		id.hold(next, err)
		err = nil
	}
	id.Refresh()
	return changed, err
}

// saveEvery is the time between attempts to write what could not be written.
const saveEvery = 10 * time.Second

// hold uses a trust that could not be written to the files.
func (id *Identity) hold(t *Trust, why error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.trust = t
	id.cutOff = id.use(id.own.credentials, time.Time{})
	id.unsaved, id.tried = &Error{
		File: id.files.CRL, Problem: "new roots and revocation lists are in use but cannot be saved: a restart would forget them", Err: why,
		Fix: "make room on the disk, or make it writable",
	}, time.Now()
	id.log.Error("identity: new roots or revocation lists cannot be saved; a restart would forget them", "err", why)
}

// save tries regularly to write an unsaved trust.
func (id *Identity) save() {
	id.mu.Lock()
	due := id.unsaved != nil && time.Since(id.tried) >= saveEvery
	t := id.trust
	id.mu.Unlock()
	if !due || !id.taking.TryLock() {
		return
	}
	defer id.taking.Unlock()
	err := t.write(id.files.CA, id.files.CRL, t, true)
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.tried = time.Now(); err == nil {
		id.unsaved = nil // the files have the same content
		id.log.Info("identity: the roots and revocation lists are saved again")
	}
}

// lostIn reports whether the files are missing or damaged. Files with other valid content are left alone, because
// somebody may just be replacing them.
func (t *Trust) lostIn(f Files) bool {
	roots, err := readRoots(f.CA)
	if err != nil {
		return true
	}
	if !sameCerts(roots.certs, t.roots.certs) {
		return false
	}
	_, err = readLists(f.CRL, roots.certs)
	return err != nil
}

// TakeCertificate installs this member's renewed certificate (PEM, with the signer's if there is one). It must be
// for this host's key. If new roots came with it, call TakeTrust first.
func (id *Identity) TakeCertificate(chain []byte) error {
	id.taking.Lock()
	defer id.taking.Unlock()
	certs, err := parseCertificates(chain, maxChain)
	if err != nil {
		return fmt.Errorf("take a renewed certificate: it %w", err)
	}
	now, is, trust := time.Now(), id.Self(), id.Trust()
	key, ok := keyOf(certs[0])
	if !ok || key != is.Key {
		return fmt.Errorf("take a renewed certificate: it is for another key: %w", ErrKeyMismatch)
	}
	der := make([][]byte, len(certs))
	for i, c := range certs {
		der[i] = c.Raw
	}
	m, err := trust.Verify(der, now)
	if err != nil {
		return fmt.Errorf("take a renewed certificate: %w", err)
	}
	if m.Name != is.Name {
		return fmt.Errorf("take a renewed certificate: it is for %s, and this is %s", m.Name, is.Name)
	}
	if err := durable.Replace(id.files.Certificate, encodeCerts(certs...), 0o644); err != nil {
		return err
	}
	id.Refresh()
	return nil
}

// RenewalRequest returns a request for a certificate for this member's key and name.
func (id *Identity) RenewalRequest() ([]byte, error) {
	o := id.current()
	return NewRequest(o.key, o.member.Name)
}
