package directory

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// purpose is the prefix of signed data, so that the signature is valid for nothing else.
const purpose = "dcol record 1\n"

const (
	maxChain       = 3
	maxCertificate = 2 << 10

	// maxAhead is the largest tolerated difference by which the signer's clock is ahead of the reader's.
	maxAhead = 10 * time.Minute
)

// SignedRecord is a record with its signature and the signer's certificates. It is immutable.
type SignedRecord struct {
	Payload   []byte   // JSON of a Record
	Signature []byte   // ed25519, by the key of Chain[0]
	Chain     [][]byte // certificates (DER), the member's own first; the root may be missing
}

// Size returns its size in bytes, without framing.
func (s *SignedRecord) Size() int {
	n := len(s.Payload) + len(s.Signature)
	for _, c := range s.Chain {
		n += len(c)
	}
	return n
}

// Equal reports whether s and other are byte-for-byte identical.
func (s *SignedRecord) Equal(other *SignedRecord) bool {
	if s == nil || other == nil {
		return s == other
	}
	return bytes.Equal(s.Payload, other.Payload) && bytes.Equal(s.Signature, other.Signature) &&
		slices.EqualFunc(s.Chain, other.Chain, bytes.Equal)
}

// NextSequence returns the sequence number of a member's next record. It grows even if the member has forgotten the
// last one; then last is 0.
func NextSequence(last uint64, now time.Time) uint64 { return max(last+1, uint64(now.UnixMilli())) }

// Sign signs a member's record. sign signs with the member's key. chain is the member's certificate, followed by the
// others up to a root.
func Sign(r Record, chain [][]byte, sign func(message []byte) []byte) (*SignedRecord, error) {
	r.Issued, r.Expires = r.Issued.UTC().Truncate(time.Second), r.Expires.UTC().Truncate(time.Second)
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("sign the record of %s: %w", r.Name, err)
	}
	payload, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("sign the record of %s: %w", r.Name, err)
	}
	s := &SignedRecord{Payload: payload, Signature: sign(slices.Concat([]byte(purpose), payload)), Chain: chain}
	if err := s.checkSize(); err != nil {
		return nil, fmt.Errorf("sign the record of %s: %w", r.Name, err)
	}
	return s, nil
}

func (s *SignedRecord) checkSize() error {
	if n := len(s.Payload); n > MaxPayload {
		return fmt.Errorf("%d bytes, but at most %d are allowed", n, MaxPayload)
	}
	if n := len(s.Signature); n > ed25519.SignatureSize {
		return fmt.Errorf("a signature of %d bytes: %d", n, ed25519.SignatureSize)
	}
	if n := len(s.Chain); n == 0 || n > maxChain {
		return fmt.Errorf("a chain of %d certificates: 1 to %d", n, maxChain)
	}
	for _, c := range s.Chain {
		if n := len(c); n > maxCertificate {
			return fmt.Errorf("a certificate of %d bytes: at most %d", n, maxCertificate)
		}
	}
	return nil
}

// Verified is a record with a verified signature, and the member named in the certificate.
type Verified struct {
	Record Record
	Holder collective.Member
	Until  time.Time // the earlier expiry of record and certificate
	Signed *SignedRecord
}

// Verify returns the record if its member has signed it and is a member now. Otherwise the error is a *Refusal. It
// does not compare the record with others; Directory does.
func (s *SignedRecord) Verify(trust *collective.Trust, now time.Time) (*Verified, error) {
	if err := s.checkSize(); err != nil {
		return nil, refuse(TooLarge, "", "%w", err)
	}
	r, err := parseRecord(s.Payload)
	if err != nil {
		return nil, refuse(Malformed, "", "%w", err)
	}
	h, err := trust.Verify(s.Chain, now)
	if err != nil {
		return nil, refuse(reasonOf(err), r.Name, "%w", err)
	}
	if len(s.Signature) != ed25519.SignatureSize || !ed25519.Verify(h.Key[:], slices.Concat([]byte(purpose), s.Payload), s.Signature) {
		return nil, refuse(BadSignature, r.Name, "not signed with the key of the certificate of %s", h.Name)
	}
	if r.Name != h.Name {
		return nil, refuse(OtherName, r.Name, "signed by %s", h.Name)
	}
	if r.Collective != h.Collective {
		return nil, refuse(OtherCollective, r.Name, "it is for %q, but its certificate for %q", r.Collective, h.Collective)
	}
	if r.Subnet.IsValid() && r.Subnet != h.Subnet {
		return nil, refuse(OtherSubnet, r.Name, "it claims the subnet %v, but its certificate has %v", r.Subnet, h.Subnet)
	}
	v := &Verified{Record: r, Holder: h, Until: r.Expires, Signed: s}
	if h.NotAfter.Before(v.Until) {
		v.Until = h.NotAfter
	}
	if err := v.checkTime(now); err != nil {
		return nil, err
	}
	return v, nil
}

// checkTime checks the record's times. Trust has checked the certificate's.
func (v *Verified) checkTime(now time.Time) error {
	r := &v.Record
	switch {
	case now.After(r.Expires):
		return refuse(Expired, r.Name, "it expired at %s; the reader's clock says %s", stamp(r.Expires), stamp(now))
	case now.Add(maxAhead).Before(r.Issued):
		return refuse(NotYet, r.Name, "it was issued at %s, but the reader's clock says %s: one of the clocks is wrong", stamp(r.Issued), stamp(now))
	}
	return nil
}

// supersedes reports whether v replaces another record of the same name. The record with the later certificate does,
// whatever the sequence numbers are: a party with an older certificate, such as a thief of the key, can no longer speak
// for the member.
func (v *Verified) supersedes(other *Verified) bool {
	if c := v.Holder.NotBefore.Compare(other.Holder.NotBefore); c != 0 {
		return c > 0
	}
	if v.Record.Sequence != other.Record.Sequence {
		return v.Record.Sequence > other.Record.Sequence
	}
	return v.Holder.Serial > other.Holder.Serial
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
