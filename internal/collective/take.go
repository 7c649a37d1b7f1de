package collective

import (
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// What a member takes from elsewhere is written to its files, so that it is known after a restart, and
// counts from then on. Nothing is taken that does not verify; who brings it need not be trusted.

// TakeTrust takes newer roots and revocation lists (contents of ca.crt and ca.crl; either may be empty).
// New roots must be stated by one known here. changed says whether there was anything new. Files that were
// damaged meanwhile are mended by the way.
func (id *Identity) TakeTrust(roots, lists []byte) (changed bool, err error) {
	if id.files.CRL == "" {
		return false, &Error{File: id.files.CA, Problem: "nothing can be taken without a file for the revocation lists", Mend: "name one in the configuration (identity.crl)"}
	}
	id.taking.Lock()
	defer id.taking.Unlock()
	known := id.Trust()
	if changed, err = known.take(roots, lists, id.files.CA, id.files.CRL); err != nil {
		return false, err
	}
	if !changed && known.lostIn(id.files) {
		err = known.write(id.files.CA, id.files.CRL, known, true)
	}
	id.Refresh()
	return changed, err
}

// lostIn tells whether the files no longer say what they said. Those that say something else are left
// alone: somebody may just be replacing them.
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

// TakeCertificate takes this member's renewed certificate (PEM, with the signer's if there is one), which
// must be for the key that is here. Whoever gets roots with it takes those first.
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

// RenewalRequest asks for a certificate for this member's key and name.
func (id *Identity) RenewalRequest() ([]byte, error) {
	o := id.current()
	return NewRequest(o.key, o.member.Name)
}
