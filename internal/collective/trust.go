package collective

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// Trust holds the collective's roots and revocation lists, as read together from ca.crt and ca.crl. It is immutable
// and does no I/O. Its answers are as old as the reading.
type Trust struct {
	roots *rootSet
	lists listSet // empty if there is no file of lists: no certificate is revoked
	pool  *x509.CertPool
}

const (
	rootsFix = "copy ca.crt from the authority"
	listsFix = "copy ca.crl again from the authority, or from another member"
)

// ReadTrust reads the two files. An empty crlFile means that no certificate is revoked.
func ReadTrust(caFile, crlFile string) (*Trust, error) {
	roots, err := readRoots(caFile)
	if err != nil {
		return nil, err
	}
	lists, err := readLists(crlFile, roots.certs)
	if err != nil {
		return nil, err
	}
	return newTrust(roots, lists), nil
}

// ParseTrust parses received contents of the two files. It does not check that these are the right roots: the
// caller must know one of them.
func ParseTrust(roots, lists []byte) (*Trust, error) {
	set, err := parseRoots(roots)
	if err != nil {
		return nil, fmt.Errorf("the received roots: it %w", err)
	}
	all, _, err := parseLists(lists, set.certs)
	if err == nil {
		err = all.complete(set.certs)
	}
	if err != nil {
		return nil, fmt.Errorf("the received revocation lists: it %w", err)
	}
	return newTrust(set, all), nil
}

func newTrust(roots *rootSet, lists listSet) *Trust {
	t := &Trust{roots: roots, lists: lists, pool: x509.NewCertPool()}
	for _, r := range roots.certs {
		t.pool.AddCert(r)
	}
	return t
}

func readRoots(path string) (*rootSet, error) {
	data, err := readNamed(path, rootsFix)
	if err != nil {
		return nil, err
	}
	roots, err := parseRoots(data)
	if err != nil {
		return nil, &Error{File: path, Problem: err.Error(), Fix: rootsFix}
	}
	return roots, nil
}

func readLists(path string, roots []*x509.Certificate) (listSet, error) {
	if path == "" {
		return listSet{}, nil
	}
	data, err := readNamed(path, listsFix)
	if err != nil {
		return nil, err
	}
	lists, _, err := parseLists(data, roots)
	if err == nil {
		err = lists.complete(roots)
	}
	if err != nil {
		return nil, &Error{File: path, Problem: err.Error(), Fix: listsFix}
	}
	return lists, nil
}

// Collective returns the collective's name.
func (t *Trust) Collective() string { return t.roots.collective() }

// Roots returns the content of ca.crt, for sending to others.
func (t *Trust) Roots() []byte { return t.roots.encode() }

// Lists returns the content of ca.crl.
func (t *Trust) Lists() []byte { return t.lists.encode() }

// Verify returns the member that presented a chain (DER, its own certificate first; the root may be missing), or an
// error if it is not a member now. If a certificate is not valid at that time, the error is a *ClockError.
func (t *Trust) Verify(chain [][]byte, now time.Time) (Member, error) {
	if len(chain) == 0 || len(chain) > maxChain {
		return Member{}, fmt.Errorf("a chain of %d certificates, but 1 to %d are allowed", len(chain), maxChain)
	}
	var leaf *x509.Certificate
	between := x509.NewCertPool()
	for i, der := range chain {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return Member{}, fmt.Errorf("a damaged certificate in the chain: %w", err)
		}
		if i == 0 {
			leaf = cert
		} else {
			between.AddCert(cert)
		}
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: t.pool, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		if clock, ok := AsClockError(err, now); ok {
			return Member{}, clock
		}
		return Member{}, fmt.Errorf("%w: %w", ErrOtherCA, err)
	}
	return t.member(chains, now)
}

// member returns the member that the verified chains belong to. At least one chain must be valid. There are several if
// a signer was renewed.
func (t *Trust) member(chains [][]*x509.Certificate, now time.Time) (m Member, err error) {
	if len(chains) == 0 {
		return Member{}, errors.New("the other side presented no certificate of this collective")
	}
	for _, chain := range chains {
		if m, err = memberOf(chain); err != nil {
			continue
		}
		if err = t.Check(m, now); err == nil {
			break
		}
	}
	return m, err
}

// Check returns an error if m, known from an earlier time, is no longer a member. If m.Issuer is zero, as after a
// restart, it only checks whether any authority has revoked the certificate.
func (t *Trust) Check(m Member, now time.Time) error {
	if m.Issuer == (Issuer{}) {
		for _, l := range t.lists {
			if at, on := l.at[m.Serial]; on {
				return &RevokedError{Name: m.Name, Serial: m.Serial, At: at}
			}
		}
	} else {
		if !t.roots.has(m.Issuer.Root) {
			return fmt.Errorf("the certificate of %s belongs to a root that the collective has retired: %w", m.Name, ErrOtherCA)
		}
		if at, on := t.lists.find(m.Issuer.Key, m.Serial); on {
			return &RevokedError{Name: m.Name, Serial: m.Serial, At: at}
		}
		if at, on := t.lists.find(m.Issuer.Root, m.Issuer.Serial); on && m.Issuer.Serial != "" {
			return &RevokedError{Name: m.Name, Serial: m.Serial, Signer: m.Issuer.Serial, At: at}
		}
	}
	if now.After(m.NotAfter) {
		return fmt.Errorf("the certificate of %s expired on %s: %w", m.Name, stamp(m.NotAfter), ErrExpired)
	}
	return nil
}

func (s listSet) find(issuer PublicKey, serial string) (at time.Time, on bool) {
	if l := s[issuer]; l != nil {
		at, on = l.at[serial]
	}
	return at, on
}

// follow returns the trust after received roots and lists, and whether each is new. Roots must be signed by known
// ones, and lists by their authorities. Older lists change nothing. Either may be empty.
func (t *Trust) follow(roots, lists []byte) (next *Trust, newRoots, newLists bool, err error) {
	set := t.roots
	if len(roots) > 0 {
		if set, err = parseRoots(roots); err != nil {
			return nil, false, false, fmt.Errorf("the received roots: %w", err)
		}
		if err := set.follows(t.roots); err != nil {
			return nil, false, false, fmt.Errorf("the received roots: %w", err)
		}
	}
	merged := t.lists
	if len(lists) > 0 {
		// Lists of former roots are not foreign, but no longer used.
		came, foreign, err := parseLists(lists, set.ever(t.roots))
		if err != nil {
			return nil, false, false, fmt.Errorf("the received revocation lists: one %w", err)
		}
		if foreign > 0 {
			return nil, false, false, fmt.Errorf("the received revocation lists: %d are not signed by an authority of this collective: %w", foreign, ErrOtherCA)
		}
		merged = merged.merge(came)
	}
	merged = merged.of(set)
	if err := merged.complete(set.certs); err != nil {
		return nil, false, false, fmt.Errorf("the combined revocation lists: it %w", err)
	}
	return newTrust(set, merged), !bytes.Equal(set.encode(), t.roots.encode()), !merged.same(t.lists), nil
}

// of returns the lists of authorities that lead to one of the roots.
func (s listSet) of(roots *rootSet) listSet {
	out := listSet{}
	for key, l := range s {
		if root, _ := keyOf(l.root); roots.has(root) {
			out[key] = l
		}
	}
	return out
}

// take applies received roots and lists, and writes new ones into the files from which t was read.
func (t *Trust) take(roots, lists []byte, caFile, crlFile string) (changed bool, err error) {
	next, newRoots, newLists, err := t.follow(roots, lists)
	if err != nil || !newRoots && !newLists {
		return false, err
	}
	return true, next.write(caFile, crlFile, t, newRoots)
}

// write writes roots and lists to the files. While it replaces the roots, the lists of removed ones are still
// there, so that the files match if a power cut comes in between.
func (t *Trust) write(caFile, crlFile string, before *Trust, newRoots bool) error {
	if newRoots {
		if err := durable.Replace(crlFile, before.lists.merge(t.lists).encode(), 0o644); err != nil {
			return err
		}
		if err := durable.Replace(caFile, t.Roots(), 0o644); err != nil {
			return err
		}
	}
	return durable.Replace(crlFile, t.lists.encode(), 0o644)
}
