package collective

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"time"
)

// ca.crl holds a revocation list of each authority, and the certificates of the signers among them: otherwise a
// member would know signers only from the chains of other members.

// maxLists bounds authorities in one file; a collective has a few.
const maxLists = 64

// revocationList is the list of one authority. It is immutable.
type revocationList struct {
	issuer *x509.Certificate // the newest, if the signer has been renewed
	root   *x509.Certificate // the same as issuer if it is a root's own list
	list   *x509.RevocationList
	at     map[string]time.Time // by serial number
}

// listSet holds the lists in ca.crl by the authority's key. It is immutable.
type listSet map[PublicKey]*revocationList

// parseLists parses ca.crl and verifies each list's signature. It skips and counts lists of authorities that do
// not lead to these roots: when roots change, the two files are replaced one after the other.
func parseLists(data []byte, roots []*x509.Certificate) (lists listSet, foreign int, err error) {
	lists = listSet{}
	issuers := map[string]*revocationList{} // by subject key identifier (RFC 5280, 4.2.1.2)
	for _, r := range roots {
		issuers[string(r.SubjectKeyId)] = &revocationList{issuer: r, root: r}
	}
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, 0, err
	}
	var parsed []*x509.RevocationList
	for _, block := range blocks {
		switch block.Type {
		case pemCertificate:
			if err := addSigner(issuers, block.Bytes, roots); err != nil {
				return nil, 0, err
			}
		case pemCRL:
			list, err := x509.ParseRevocationList(block.Bytes)
			if err != nil {
				return nil, 0, fmt.Errorf("holds a damaged revocation list: %w", err)
			}
			parsed = append(parsed, list)
		}
		if len(parsed) > maxLists || len(issuers) > maxLists {
			return nil, 0, fmt.Errorf("holds more than %d revocation lists", maxLists)
		}
	}
	if len(parsed) == 0 {
		return nil, 0, errors.New("holds no PEM block " + pemCRL)
	}
	for _, list := range parsed {
		by := issuers[string(list.AuthorityKeyId)]
		if by == nil || len(list.AuthorityKeyId) == 0 {
			foreign++
			continue
		}
		if err := lists.add(list, by); err != nil {
			return nil, 0, err
		}
	}
	return lists, foreign, nil
}

func addSigner(issuers map[string]*revocationList, der []byte, roots []*x509.Certificate) error {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("holds a damaged certificate: %w", err)
	}
	way := linkUp(cert, nil, roots)
	if way == nil || !cert.IsCA || isRoot(cert) {
		return nil // a root's is not needed here, and a stranger's is useless
	}
	known := issuers[string(cert.SubjectKeyId)]
	switch {
	case known != nil && !bytes.Equal(known.issuer.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo):
		return errors.New("holds two authorities with one key identifier")
	case known == nil || cert.NotAfter.After(known.issuer.NotAfter):
		issuers[string(cert.SubjectKeyId)] = &revocationList{issuer: cert, root: way[1]}
	}
	return nil
}

func (s listSet) add(list *x509.RevocationList, by *revocationList) error {
	name := by.issuer.Subject.CommonName
	if err := list.CheckSignatureFrom(by.issuer); err != nil {
		return fmt.Errorf("the revocation list of %s is not signed by it: %w", name, err)
	}
	if list.Number == nil {
		return fmt.Errorf("the revocation list of %s has no number", name)
	}
	key, ok := keyOf(by.issuer)
	if !ok {
		return fmt.Errorf("the revocation list of %s is not signed with ed25519", name)
	}
	if other := s[key]; other != nil && other.list.Number.Cmp(list.Number) >= 0 {
		return nil
	}
	at := make(map[string]time.Time, len(list.RevokedCertificateEntries))
	for _, e := range list.RevokedCertificateEntries {
		at[serialText(e.SerialNumber)] = e.RevocationTime
	}
	s[key] = &revocationList{issuer: by.issuer, root: by.root, list: list, at: at}
	return nil
}

// complete checks that each root has a list, because otherwise revoked signers would not be known.
func (s listSet) complete(roots []*x509.Certificate) error {
	for _, r := range roots {
		if key, _ := keyOf(r); s[key] == nil {
			return fmt.Errorf("holds no revocation list that is signed by %s (root %s)", r.Subject.CommonName, serialText(r.SerialNumber))
		}
	}
	return nil
}

// goesBack returns an error if a list that is still needed is missing or older than before.
func (s listSet) goesBack(before listSet, roots *rootSet, now time.Time) error {
	for key, old := range before {
		if root, _ := keyOf(old.root); !roots.has(root) {
			continue
		}
		list := s[key]
		switch {
		case list == nil && !old.isRoot() && (now.After(old.issuer.NotAfter) || s.revoked(old)):
			// The certificates that it revoked are no longer valid in any case.
		case list == nil:
			return fmt.Errorf("lacks the revocation list of %s, seen before", old.issuer.Subject.CommonName)
		case list.list.Number.Cmp(old.list.Number) < 0:
			return fmt.Errorf("list number %v of %s is older than number %v seen before", list.list.Number, old.issuer.Subject.CommonName, old.list.Number)
		}
	}
	return nil
}

func (l *revocationList) isRoot() bool { return l.issuer.Equal(l.root) }

// revoked reports whether a signer is on its root's list.
func (s listSet) revoked(l *revocationList) bool {
	root, _ := keyOf(l.root)
	by := s[root]
	if by == nil {
		return false
	}
	_, on := by.at[serialText(l.issuer.SerialNumber)]
	return on
}

// merge returns the newer list of each authority.
func (s listSet) merge(other listSet) listSet {
	out := maps.Clone(s)
	for key, l := range other {
		have := out[key]
		switch {
		case have == nil:
			out[key] = l
		case l.list.Number.Cmp(have.list.Number) > 0:
			out[key] = l.withIssuer(have.issuer)
		default:
			out[key] = have.withIssuer(l.issuer)
		}
	}
	return out
}

// withIssuer returns l with the newer certificate of the signer.
func (l *revocationList) withIssuer(other *x509.Certificate) *revocationList {
	if !other.NotAfter.After(l.issuer.NotAfter) || l.isRoot() {
		return l
	}
	c := *l
	c.issuer = other
	return &c
}

// same reports whether both sets have the same lists.
func (s listSet) same(other listSet) bool {
	return maps.EqualFunc(s, other, func(a, b *revocationList) bool {
		return a.issuer.Equal(b.issuer) && bytes.Equal(a.list.Raw, b.list.Raw)
	})
}

func (s listSet) total() (n int) {
	for _, l := range s {
		n += len(l.at)
	}
	return n
}

// encode returns the content of ca.crl: the roots' lists first, then the signers' in the order of their keys.
func (s listSet) encode() []byte {
	keys := slices.SortedFunc(maps.Keys(s), func(a, b PublicKey) int {
		if x, y := s[a].isRoot(), s[b].isRoot(); x != y {
			if x {
				return -1
			}
			return 1
		}
		return bytes.Compare(a[:], b[:])
	})
	var out []byte
	for _, k := range keys {
		l := s[k]
		if !l.isRoot() {
			out = append(out, encodeCerts(l.issuer)...)
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: l.list.Raw})...)
	}
	return out
}

// nextNumber returns the number of the list after l, which is nil for the first list. Numbers must grow (RFC
// 5280, 5.2.3). They follow the time in seconds: otherwise an authority that was restored from a backup would
// reuse numbers, and members would ignore its lists.
func nextNumber(l *revocationList, now time.Time) *big.Int {
	number := big.NewInt(now.Unix())
	if l == nil {
		return number
	}
	if next := new(big.Int).Add(l.list.Number, big.NewInt(1)); next.Cmp(number) > 0 {
		return next // a second list within a second, or the clock was ahead
	}
	return number
}

// NewerList reports whether t has a newer revocation list of an authority than another trust has.
func (t *Trust) NewerList(than *Trust, of PublicKey) bool {
	here, there := t.lists[of], than.lists[of]
	return here != nil && (there == nil || here.list.Number.Cmp(there.list.Number) > 0)
}
