package collective

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A statement says "from now on, these are the collective's roots" and is signed by an earlier root. Statements are
// numbered and kept in ca.crt, after the roots, so that a member that missed some can follow them from its known roots
// to the present ones. Parties that only forward them, such as the coordinator, can neither add statements nor bring
// back old ones.
//
// As with any X.509 authority, the only defence against a stolen root key is a statement by another root that the
// stolen one is no longer a root.

const (
	pemRoots      = "DCOL ROOTS"
	rootsContext  = "dcol roots 1\n" // prefix of signed data, so that the signature is valid for nothing else
	maxRoots      = 8
	maxStatements = 64
)

// rootsStatement is the signed JSON. In the PEM block the signature of 64 bytes precedes it.
type rootsStatement struct {
	Collective string    `json:"collective"`
	Number     uint64    `json:"number"`
	Time       time.Time `json:"time"`
	Roots      [][]byte  `json:"roots"` // certificates, DER

	signed []byte // signature and JSON
	certs  []*x509.Certificate
}

// rootSet is the content of ca.crt. It is immutable.
type rootSet struct {
	certs      []*x509.Certificate
	statements []*rootsStatement // numbers grow
}

// parseRoots parses ca.crt. It does not verify the statements' signatures; follows does.
func parseRoots(data []byte) (*rootSet, error) {
	certs, err := parseCertificates(data, maxRoots)
	if err != nil {
		return nil, err
	}
	if err := checkRoots(certs); err != nil {
		return nil, err
	}
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	s := &rootSet{certs: certs}
	for _, block := range blocks {
		if block.Type != pemRoots {
			continue
		}
		st, err := parseStatement(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("holds a damaged statement of roots: %w", err)
		}
		if st.Collective != s.collective() {
			return nil, fmt.Errorf("holds a statement of the roots of %q, not of %q", st.Collective, s.collective())
		}
		if st.Number <= s.number() {
			return nil, fmt.Errorf("holds statement of roots %d after number %d", st.Number, s.number())
		}
		if s.statements = append(s.statements, st); len(s.statements) > maxStatements {
			return nil, fmt.Errorf("holds more than %d statements of roots", maxStatements)
		}
	}
	return s, nil
}

func checkRoots(certs []*x509.Certificate) error {
	if len(certs) == 0 || len(certs) > maxRoots {
		return fmt.Errorf("%d roots", len(certs))
	}
	if err := CheckCollective(certs[0].Subject.CommonName); err != nil {
		return err
	}
	for i, c := range certs {
		if !c.IsCA {
			return fmt.Errorf("holds a certificate of %s, a member's, not an authority's", c.Subject.CommonName)
		}
		if _, ok := keyOf(c); !ok || !isRoot(c) {
			return fmt.Errorf("holds a certificate of %s that is not a root", c.Subject.CommonName)
		}
		if c.Subject.CommonName != certs[0].Subject.CommonName {
			return fmt.Errorf("holds roots of two collectives, %q and %q", certs[0].Subject.CommonName, c.Subject.CommonName)
		}
		if slices.ContainsFunc(certs[:i], func(o *x509.Certificate) bool {
			return bytes.Equal(o.RawSubjectPublicKeyInfo, c.RawSubjectPublicKeyInfo)
		}) {
			return errors.New("holds one root twice")
		}
	}
	return nil
}

func parseStatement(signed []byte) (*rootsStatement, error) {
	if len(signed) <= ed25519.SignatureSize {
		return nil, errors.New("it is cut off")
	}
	st := &rootsStatement{signed: signed}
	if err := json.Unmarshal(signed[ed25519.SignatureSize:], st); err != nil {
		return nil, err
	}
	if st.Number == 0 {
		return nil, errors.New("it has no number")
	}
	for _, der := range st.Roots {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		st.certs = append(st.certs, cert)
	}
	if err := checkRoots(st.certs); err != nil {
		return nil, err
	}
	if name := st.certs[0].Subject.CommonName; name != st.Collective {
		return nil, fmt.Errorf("it is of %q with roots of %q", st.Collective, name)
	}
	return st, nil
}

func (st *rootsStatement) signedByOne(of []*x509.Certificate) bool {
	signature, payload := st.signed[:ed25519.SignatureSize], st.signed[ed25519.SignatureSize:]
	return slices.ContainsFunc(of, func(c *x509.Certificate) bool {
		key, ok := keyOf(c)
		return ok && ed25519.Verify(key[:], append([]byte(rootsContext), payload...), signature)
	})
}

// state returns the roots certs, with a statement about them that is signed with a root's key.
func (s *rootSet) state(certs []*x509.Certificate, key ed25519.PrivateKey, now time.Time) (*rootSet, error) {
	st := rootsStatement{Collective: s.collective(), Number: s.number() + 1, Time: now.UTC().Truncate(time.Second)}
	for _, c := range certs {
		st.Roots = append(st.Roots, c.Raw)
	}
	payload, err := json.Marshal(st)
	if err != nil {
		return nil, fmt.Errorf("write a statement of roots: %w", err)
	}
	made, err := parseStatement(slices.Concat(ed25519.Sign(key, append([]byte(rootsContext), payload...)), payload))
	if err != nil {
		return nil, fmt.Errorf("state the roots: %w", err)
	}
	if !made.signedByOne(s.certs) {
		return nil, errors.New("state the roots: not signed by a present root")
	}
	if len(s.statements) == maxStatements {
		return nil, fmt.Errorf("state the roots: there are %d statements already, the maximum: start a new collective", maxStatements)
	}
	return &rootSet{certs: made.certs, statements: append(slices.Clip(s.statements), made)}, nil
}

// follows returns an error unless statements lead from the known roots to these.
func (s *rootSet) follows(known *rootSet) error {
	have, number := known.certs, known.number()
	if s.collective() != known.collective() {
		return fmt.Errorf("roots of %q, not of %q: %w", s.collective(), known.collective(), ErrNotEndorsed)
	}
	if s.number() < number {
		return fmt.Errorf("statement of roots %d is older than number %d seen before: %w", s.number(), number, ErrNotEndorsed)
	}
	for _, st := range s.statements {
		if st.Number <= number {
			continue
		}
		if !st.signedByOne(have) {
			return fmt.Errorf("statement of roots %d is not signed by a root known before it: %w", st.Number, ErrNotEndorsed)
		}
		have, number = st.certs, st.Number
	}
	if !sameCerts(have, s.certs) {
		return fmt.Errorf("holds roots that no known root has signed: %w", ErrNotEndorsed)
	}
	return nil
}

// olderThan reports whether these are earlier roots of the same collective, before its last statement.
func (s *rootSet) olderThan(known *rootSet) bool {
	share := slices.ContainsFunc(s.certs, func(c *x509.Certificate) bool { return slices.ContainsFunc(known.certs, c.Equal) })
	return share && s.number() < known.number()
}

func (s *rootSet) collective() string { return s.certs[0].Subject.CommonName }

// number returns the number of the last statement, or zero if there is none.
func (s *rootSet) number() uint64 {
	if len(s.statements) == 0 {
		return 0
	}
	return s.statements[len(s.statements)-1].Number
}

// ever returns every present and former root in s and in known.
func (s *rootSet) ever(known *rootSet) []*x509.Certificate {
	out := slices.Clone(s.certs)
	add := func(certs []*x509.Certificate) {
		for _, c := range certs {
			if !slices.ContainsFunc(out, c.Equal) {
				out = append(out, c)
			}
		}
	}
	add(known.certs)
	for _, st := range s.statements {
		add(st.certs)
	}
	return out
}

func (s *rootSet) has(key PublicKey) bool {
	return slices.ContainsFunc(s.certs, func(c *x509.Certificate) bool { k, _ := keyOf(c); return k == key })
}

func (s *rootSet) encode() []byte {
	out := encodeCerts(s.certs...)
	for _, st := range s.statements {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: pemRoots, Bytes: st.signed})...)
	}
	return out
}

// sameCerts reports whether a and b have the same certificates in any order.
func sameCerts(a, b []*x509.Certificate) bool {
	in := func(c *x509.Certificate, of []*x509.Certificate) bool { return slices.ContainsFunc(of, c.Equal) }
	for _, c := range a {
		if !in(c, b) {
			return false
		}
	}
	for _, c := range b {
		if !in(c, a) {
			return false
		}
	}
	return true
}
