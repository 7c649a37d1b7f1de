package directory

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/collective"
)

var compareNetip = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func TestVerify(t *testing.T) {
	a := newAuthority(t, testCollective)
	alice := a.issue(t, "alice", terms{subnet: "10.1.2.0/26"})
	now := time.Now()
	r := alice.record(7, now)
	r.Key = WireGuardKey{1, 2, 3}
	v, err := alice.sign(t, r).Verify(a.trust(t), now)
	if err != nil {
		t.Fatal(err)
	}
	r.Issued, r.Expires = r.Issued.UTC().Truncate(time.Second), r.Expires.UTC().Truncate(time.Second)
	if diff := cmp.Diff(r, v.Record, compareNetip); diff != "" {
		t.Error(diff)
	}
	if v.Holder.Name != "alice" || !v.Until.Equal(r.Expires) {
		t.Errorf("held by %+v until %v", v.Holder, v.Until)
	}
	short := a.issue(t, "bob", terms{to: now.Add(time.Hour)})
	v, err = short.signed(t, 1).Verify(a.trust(t), now)
	if err != nil || !v.Until.Equal(v.Holder.NotAfter) {
		t.Errorf("a record that outlives its certificate counts until %v (%v)", v.Until, err)
	}
}

// An identity signs as the tests do.
func TestSignWithAnIdentity(t *testing.T) {
	a := newAuthority(t, testCollective)
	issued, err := a.signer.Issue(collective.Request{Name: "alice", Validity: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	id, err := collective.Load(collective.Files{
		Certificate: issued.CertFile, Key: issued.KeyFile, CA: a.signer.CertFile(), CRL: a.signer.CRLFile(),
	}, quiet())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Sign((member{name: "alice", chain: id.Chain()}).record(1, time.Now()), id.Chain(), id.Sign)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Verify(id.Trust(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.signer.Revoke("alice", collective.PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	_, err = s.Verify(a.trust(t), time.Now())
	wantReason(t, err, Revoked)
}

func TestVerifyRefuses(t *testing.T) {
	now := time.Now()
	a, other := newAuthority(t, testCollective), newAuthority(t, testCollective)
	elsewhere := newAuthority(t, "another collective")
	alice := a.issue(t, "alice", terms{subnet: "10.1.2.0/26"})
	mallory := a.issue(t, "mallory", terms{subnet: "10.1.3.0/26"})
	good := alice.record(1, now)
	change := func(f func(*Record)) *SignedRecord {
		r := good
		f(&r)
		return alice.sign(t, r)
	}
	// raw signs what Sign would refuse.
	raw := func(payload string) *SignedRecord {
		return &SignedRecord{Payload: []byte(payload), Signature: alice.signature([]byte(purpose + payload)), Chain: alice.chain}
	}
	replaced := func(old, by string) *SignedRecord {
		payload := string(alice.sign(t, good).Payload)
		if !strings.Contains(payload, old) {
			t.Fatalf("no %q in %s", old, payload)
		}
		return raw(strings.Replace(payload, old, by, 1))
	}
	for name, c := range map[string]struct {
		s    *SignedRecord
		want Reason
	}{
		"another's name":           {mallory.sign(t, good), OtherName},
		"another's subnet":         {mallory.sign(t, func() Record { r := mallory.record(1, now); r.Subnet = good.Subnet; return r }()), OtherSubnet},
		"part of its subnet":       {change(func(r *Record) { r.Subnet = netip.MustParsePrefix("10.1.2.0/27") }), OtherSubnet},
		"another collective's":     {change(func(r *Record) { r.Collective = "another collective" }), OtherCollective},
		"another authority's":      {other.issue(t, "alice", terms{}).signed(t, 1), Foreign},
		"another collective's CA":  {elsewhere.issue(t, "alice", terms{}).signed(t, 1), Foreign},
		"without the signer":       {func() *SignedRecord { m := alice; m.chain = m.chain[:1]; return m.signed(t, 1) }(), Foreign},
		"a chain of noise":         {func() *SignedRecord { s := *alice.signed(t, 1); s.Chain = [][]byte{{1, 2, 3}}; return &s }(), Foreign},
		"the signer's certificate": {func() *SignedRecord { m := member{"alice", [][]byte{a.cert.Raw}, a.key}; return m.sign(t, good) }(), Foreign},
		"another's signature":      {func() *SignedRecord { s := *alice.signed(t, 1); s.Signature = mallory.signature(s.Payload); return &s }(), BadSignature},
		"signed for nothing":       {func() *SignedRecord { s := *alice.signed(t, 1); s.Signature = alice.signature(s.Payload); return &s }(), BadSignature},
		"no signature":             {func() *SignedRecord { s := *alice.signed(t, 1); s.Signature = nil; return &s }(), BadSignature},
		"expired":                  {change(func(r *Record) { r.Issued = now.Add(-48 * time.Hour); r.Expires = now.Add(-24 * time.Hour) }), Expired},
		"of tomorrow":              {change(func(r *Record) { r.Issued = now.Add(24 * time.Hour) }), NotYet},
		"certificate ended":        {a.issue(t, "alice", terms{from: now.Add(-48 * time.Hour), to: now.Add(-24 * time.Hour)}).sign(t, good), Ended},
		"certificate of tomorrow":  {a.issue(t, "alice", terms{from: now.Add(24 * time.Hour)}).sign(t, good), NotYet},
		"no JSON":                  {raw("{"), Malformed},
		"two records":              {raw(string(alice.sign(t, good).Payload) + "{}"), Malformed},
		"no number":                {replaced(`"sequence":1`, `"sequence":0`), Malformed},
		"negative number":          {replaced(`"sequence":1`, `"sequence":-1`), Malformed},
		"no name":                  {replaced(`"alice"`, `""`), Malformed},
		"a path as name":           {replaced(`"alice"`, `"../alice"`), Malformed},
		"a word with a newline":    {replaced(`"eu"`, `"e\nu"`), Malformed},
		"unreachable address":      {replaced(`198.51.100.7`, `127.0.0.1`), Malformed},
		"an address with a zone":   {replaced(`2001:db8::7`, `fe80::1%eth0`), Malformed},
		"no port":                  {replaced(`"port":45672`, `"port":0`), Malformed},
		"host bits in the subnet":  {replaced(`10.1.2.0/26`, `10.1.2.1/26`), Malformed},
		"measured a path":          {replaced(`"region":"eu"`, `"region":"eu","measured":[{"of":"../bob","loss":1}]`), Malformed},
		"measured twice":           {replaced(`"region":"eu"`, `"region":"eu","measured":[{"of":"bob"},{"of":"bob"}]`), Malformed},
		"measured too much":        {replaced(`"region":"eu"`, `"region":"eu","measured":[`+strings.Repeat(`{"of":"bob"},`, MaxMeasured)+`{"of":"carol"}]`), Malformed},
		"a negative class":         {replaced(`"region":"eu"`, `"region":"eu","measured":[{"of":"bob","loss":-1}]`), Malformed},
		"valid for ever":           {replaced(`"expires":"2`, `"expires":"9`), Malformed},
		"too much":                 {raw(strings.Repeat(" ", MaxPayload) + "{}"), TooLarge},
		"a chain too long":         {func() *SignedRecord { s := *alice.signed(t, 1); s.Chain = make([][]byte, 4); return &s }(), TooLarge},
		"no chain":                 {func() *SignedRecord { s := *alice.signed(t, 1); s.Chain = nil; return &s }(), TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := c.s.Verify(a.trust(t), now)
			if v != nil {
				t.Fatalf("taken: %+v", v.Record)
			}
			wantReason(t, err, c.want)
		})
	}
}

// No bit of a signed record can change without being noticed.
func TestVerifyNoticesEveryBit(t *testing.T) {
	a := newAuthority(t, testCollective)
	trust, now := a.trust(t), time.Now()
	s := a.issue(t, "alice", terms{}).signed(t, 1)
	flip := func(what string, of []byte, s func(changed []byte) *SignedRecord) {
		for i := range of {
			changed := bytes.Clone(of)
			changed[i] ^= 1 << (i % 8)
			if _, err := s(changed).Verify(trust, now); err == nil {
				t.Errorf("byte %d of the %s changed, and it is taken", i, what)
			}
		}
	}
	flip("payload", s.Payload, func(b []byte) *SignedRecord { return &SignedRecord{b, s.Signature, s.Chain} })
	flip("signature", s.Signature, func(b []byte) *SignedRecord { return &SignedRecord{s.Payload, b, s.Chain} })
	flip("certificate", s.Chain[0], func(b []byte) *SignedRecord { return &SignedRecord{s.Payload, s.Signature, [][]byte{b, s.Chain[1]}} })
}

func TestLaterVersionsMaySayMore(t *testing.T) {
	a := newAuthority(t, testCollective)
	alice := a.issue(t, "alice", terms{})
	var fields map[string]any
	if err := json.Unmarshal(alice.signed(t, 1).Payload, &fields); err != nil {
		t.Fatal(err)
	}
	fields["mood"], fields["kinds"] = "good", []string{"in-band", "telepathy"}
	payload, _ := json.Marshal(fields)
	s := &SignedRecord{payload, alice.signature(append([]byte(purpose), payload...)), alice.chain}
	v, err := s.Verify(a.trust(t), time.Now())
	if err != nil || !v.Record.IsWaypoint() {
		t.Fatalf("%+v, %v", v, err)
	}
}

func TestSignRefuses(t *testing.T) {
	a := newAuthority(t, testCollective)
	alice := a.issue(t, "alice", terms{})
	for name, f := range map[string]func(*Record){
		"too many addresses": func(r *Record) { r.Addresses = make([]netip.Addr, 9) },
		"one address twice":  func(r *Record) { r.Addresses = append(r.Addresses, r.Addresses[0]) },
		"too many kinds":     func(r *Record) { r.Kinds = strings.Split("abcdefghi", "") },
		"one role twice":     func(r *Record) { r.Roles = []string{"client", "client"} },
		"no collective":      func(r *Record) { r.Collective = "" },
		"over before it is":  func(r *Record) { r.Expires = r.Issued },
	} {
		r := alice.record(1, time.Now())
		f(&r)
		if _, err := Sign(r, alice.chain, alice.signature); err == nil || !strings.Contains(err.Error(), "alice") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSupersedes(t *testing.T) {
	day := func(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	v := func(from int, serial string, sequence uint64) *Verified {
		return &Verified{Record: Record{Sequence: sequence}, Holder: collective.Member{Serial: serial, NotBefore: day(from)}}
	}
	inOrder := []*Verified{v(1, "b", 1), v(1, "a", 2), v(1, "b", 2), v(2, "a", 1)} // the newest last
	for i, x := range inOrder {
		for j, y := range inOrder {
			if x.supersedes(y) != (i > j) {
				t.Errorf("%d over %d: %v", i, j, x.supersedes(y))
			}
		}
	}
}

func TestRefusalSaysWhoAndWhy(t *testing.T) {
	a := newAuthority(t, testCollective)
	s := a.issue(t, "alice", terms{}).signed(t, 1)
	_, err := s.Verify(a.trust(t), time.Now().Add(24*time.Hour*300))
	if err == nil || !strings.Contains(err.Error(), "alice") || !strings.Contains(err.Error(), string(Ended)) || !errors.Is(err, collective.ErrExpired) {
		t.Fatal(err)
	}
}
