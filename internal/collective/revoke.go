package collective

import (
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// Reason is the reason for a revocation (RFC 5280, 5.3.1).
type Reason int

// The reasons that make sense between members.
const (
	Unspecified          Reason = 0
	KeyCompromise        Reason = 1
	Superseded           Reason = 4
	CessationOfOperation Reason = 5
	PrivilegeWithdrawn   Reason = 9
)

var reasonNames = map[Reason]string{
	Unspecified:          "unspecified",
	KeyCompromise:        "key-compromise",
	Superseded:           "superseded",
	CessationOfOperation: "cessation",
	PrivilegeWithdrawn:   "expelled",
}

func (r Reason) String() string {
	if name, ok := reasonNames[r]; ok {
		return name
	}
	return fmt.Sprintf("reason %d", int(r))
}

// ParseReason parses a reason that String returned.
func ParseReason(s string) (Reason, error) {
	names := make([]string, 0, len(reasonNames))
	for r, name := range reasonNames {
		if name == s {
			return r, nil
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return 0, fmt.Errorf("unknown reason %q: use one of %s", s, strings.Join(names, ", "))
}

// Revoke adds certificates to the revocation list: all valid ones of a member or a signer, or the one with a
// serial number. It returns the added ones.
func (ca *CA) Revoke(nameOrSerial string, reason Reason) ([]IssuedCertificate, error) {
	unlock, err := durable.Lock(ca.dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found, err := ca.issued.find(nameOrSerial, time.Now())
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("revoke %s: %s %w: see %s", nameOrSerial, ca.Name(), ErrNotIssued, ca.issued.dir)
	}
	var revoked []IssuedCertificate
	err = ca.changeList(func(entries []x509.RevocationListEntry) ([]x509.RevocationListEntry, error) {
		entries, err := ca.withoutEnded(entries, time.Now())
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			serial, ok := new(big.Int).SetString(r.Serial, 16)
			if !ok {
				return nil, fmt.Errorf("revoke %s: %q in %s is not a serial number: %s", nameOrSerial, r.Serial, ca.issued.dir, recordFix)
			}
			r.Revoked, r.Why = true, reason
			revoked = append(revoked, r)
			if !slices.ContainsFunc(entries, func(e x509.RevocationListEntry) bool { return e.SerialNumber.Cmp(serial) == 0 }) {
				entries = append(entries, x509.RevocationListEntry{SerialNumber: serial, RevocationTime: time.Now(), ReasonCode: int(reason)})
			}
		}
		return entries, nil
	})
	return revoked, err
}

// AddIssued records a certificate that this authority has signed and that its damaged records lack. Only recorded
// certificates can be revoked.
func (ca *CA) AddIssued(m Member) error {
	if m.Issuer.Key != ca.Key() {
		return fmt.Errorf("record the certificate of %s: %s has not signed it", m.Name, ca.Name())
	}
	unlock, err := durable.Lock(ca.dir)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := ca.issued.find(m.Serial, time.Now())
	if err != nil || len(found) > 0 {
		return err
	}
	return ca.issued.add(IssuedCertificate{Serial: m.Serial, Name: m.Name, NotBefore: m.NotBefore, NotAfter: m.NotAfter, Key: m.Key, Subnet: m.Subnet})
}

// withoutEnded removes entries of expired certificates, so that the list of a collective with short-lived
// certificates stays short.
func (ca *CA) withoutEnded(entries []x509.RevocationListEntry, now time.Time) ([]x509.RevocationListEntry, error) {
	if len(entries) == 0 {
		return entries, nil
	}
	oldest := slices.MinFunc(entries, func(a, b x509.RevocationListEntry) int { return a.RevocationTime.Compare(b.RevocationTime) })
	over, err := ca.issued.over(oldest.RevocationTime, now)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(entries), func(e x509.RevocationListEntry) bool { return over[serialText(e.SerialNumber)] }), nil
}

// changeList changes the authority's own list, signs it and replaces it in ca.crl. The caller holds the lock.
func (ca *CA) changeList(change func([]x509.RevocationListEntry) ([]x509.RevocationListEntry, error)) error {
	t, err := ca.Trust()
	if err != nil {
		return err
	}
	old := t.lists[ca.Key()]
	var entries []x509.RevocationListEntry
	if old != nil {
		entries = old.list.RevokedCertificateEntries
	}
	if entries, err = change(entries); err != nil {
		return err
	}
	list, err := ca.sign(entries, nextNumber(old, time.Now()))
	if err != nil {
		return err
	}
	lists := maps.Clone(t.lists)
	maps.Copy(lists, list)
	return durable.Replace(ca.CRLFile(), lists.encode(), 0o644)
}

// sign signs the authority's list. The list is valid as long as the authority: members use the list with the
// highest number, and a member that gets no newer one must continue with its own.
func (ca *CA) sign(entries []x509.RevocationListEntry, number *big.Int) (listSet, error) {
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number:                    number,
		ThisUpdate:                time.Now().Add(-backdate),
		NextUpdate:                ca.cert.NotAfter,
		RevokedCertificateEntries: entries,
	}, ca.cert, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign the revocation list: %w", err)
	}
	list, err := x509.ParseRevocationList(der)
	if err != nil {
		return nil, fmt.Errorf("read back the revocation list: %w", err)
	}
	out := listSet{}
	return out, out.add(list, &revocationList{issuer: ca.cert, root: ca.root})
}
