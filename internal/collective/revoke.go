package collective

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Reason is why a certificate is revoked (RFC 5280, 5.3.1).
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

// ParseReason reads what String writes.
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

// Revoke puts certificates on the revocation list: all valid ones of a member, or the one with a serial
// number. It returns the serial numbers now on the list because of it.
func (ca *CA) Revoke(nameOrSerial string, reason Reason) ([]string, error) {
	unlock, err := lockDir(ca.dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found, err := ca.find(nameOrSerial)
	if err != nil {
		return nil, err
	}
	list, err := readCRL(ca.CRLFile(), ca.cert)
	if err != nil {
		return nil, err
	}
	entries := list.RevokedCertificateEntries
	var serials []string
	for _, cert := range found {
		serials = append(serials, serialText(cert.SerialNumber))
		if !slices.ContainsFunc(entries, func(e x509.RevocationListEntry) bool { return e.SerialNumber.Cmp(cert.SerialNumber) == 0 }) {
			entries = append(entries, x509.RevocationListEntry{
				SerialNumber:   cert.SerialNumber,
				RevocationTime: time.Now(),
				ReasonCode:     int(reason),
			})
		}
	}
	if err := ca.writeCRL(entries, new(big.Int).Add(list.Number, big.NewInt(1))); err != nil {
		return nil, err
	}
	return serials, nil
}

// find returns the unexpired certificates of a member, or the one with that serial number.
func (ca *CA) find(nameOrSerial string) ([]*x509.Certificate, error) {
	const mend = "restore the authority's directory from its backup"
	dir := filepath.Join(ca.dir, issuedDir)
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list what was issued: %w", err)
	}
	var found []*x509.Certificate
	for _, f := range files {
		if strings.HasPrefix(f.Name(), ".") || filepath.Ext(f.Name()) != ".crt" {
			continue
		}
		cert, err := readCertificate(filepath.Join(dir, f.Name()), mend)
		if err != nil {
			return nil, err
		}
		if serialText(cert.SerialNumber) == strings.ToLower(nameOrSerial) ||
			cert.Subject.CommonName == nameOrSerial && time.Now().Before(cert.NotAfter) {
			found = append(found, cert)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("revoke %s: %s has issued no valid certificate of that name or serial number: see %s", nameOrSerial, ca.Name(), dir)
	}
	return found, nil
}

// writeCRL signs the list. It ends with the authority: members take whichever list has the highest
// number, and a member that gets no newer one must go on with what it knows.
func (ca *CA) writeCRL(entries []x509.RevocationListEntry, number *big.Int) error {
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number:                    number,
		ThisUpdate:                time.Now().Add(-backdate),
		NextUpdate:                ca.cert.NotAfter,
		RevokedCertificateEntries: entries,
	}, ca.cert, ca.key)
	if err != nil {
		return fmt.Errorf("sign the revocation list: %w", err)
	}
	return writeFile(ca.CRLFile(), pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: der}), 0o644)
}

// readCRL reads a revocation list and checks that the authority signed it.
func readCRL(path string, ca *x509.Certificate) (*x509.RevocationList, error) {
	const mend = "copy ca.crl anew from the authority"
	der, err := readPEM(path, pemCRL, mend)
	if err != nil {
		return nil, err
	}
	list, err := x509.ParseRevocationList(der)
	if err != nil {
		return nil, &Error{File: path, Problem: "holds a damaged revocation list", Mend: mend, Err: err}
	}
	if err := list.CheckSignatureFrom(ca); err != nil {
		return nil, &Error{File: path, Problem: "the revocation list is not signed by " + ca.Subject.CommonName, Mend: mend, Err: err}
	}
	if list.Number == nil {
		return nil, &Error{File: path, Problem: "the revocation list has no number", Mend: mend}
	}
	return list, nil
}
