package directory

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func sampleBatch(t testing.TB) Batch {
	a := newAuthority(t, testCollective)
	alice, bob := a.issue(t, "alice", terms{subnet: "10.1.2.0/26"}), a.issue(t, "bob", terms{})
	return Batch{Epoch: 9, After: 2, Revision: 7, Head: 8, Listing: 9, Changes: []Change{
		{Revision: 3, Signed: alice.signed(t, 1)}, {Revision: 5, Name: "carol", Why: "expelled: \u2620"}, {Revision: 6, Signed: bob.signed(t, 1)},
	}}
}

func TestBatchRoundTrip(t *testing.T) {
	b := sampleBatch(t)
	for _, b := range []Batch{b, {Epoch: 1}, {Epoch: 1, After: 5, Revision: 5, Head: 7}} {
		data, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeBatch(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b, back); diff != "" {
			t.Error(diff)
		}
	}
	data, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(data, b.Changes[0].Signed.Chain[1]); n != 1 {
		t.Errorf("the signer's certificate is in the message %d times", n)
	}
	s := b.Changes[0].Signed
	if data, err = s.Encode(); err != nil {
		t.Fatal(err)
	}
	if back, err := DecodeRecord(data); err != nil || !back.Equal(s) {
		t.Errorf("%+v, %v", back, err)
	}
	for _, a := range []Ask{{}, {Epoch: 1 << 63, After: 1 << 63, Listing: 1 << 63}} {
		data, err := a.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := DecodeAsk(data); err != nil || back != a {
			t.Errorf("%+v became %+v (%v)", a, back, err)
		}
	}
}

func TestBatchesThatMakeNoSense(t *testing.T) {
	good := sampleBatch(t)
	for name, f := range map[string]func(*Batch){
		"no epoch":               func(b *Batch) { b.Epoch = 0 },
		"backwards":              func(b *Batch) { b.After = 8 },
		"beyond its head":        func(b *Batch) { b.Head = 6 },
		"change before":          func(b *Batch) { b.Changes[0].Revision = 2 },
		"change after":           func(b *Batch) { b.Changes[2].Revision = 8 },
		"changes in disorder":    func(b *Batch) { b.Changes[1].Revision = 3 },
		"neither":                func(b *Batch) { b.Changes[0].Signed = nil },
		"both":                   func(b *Batch) { b.Changes[0].Name = "alice" },
		"removal of a path":      func(b *Batch) { b.Changes[1].Name = "../carol" },
		"a novel about a member": func(b *Batch) { b.Changes[1].Why = strings.Repeat("x", 201) },
		"too much": func(b *Batch) {
			b.Changes[0].Signed = &SignedRecord{bytes.Repeat([]byte("x"), MaxMessage), nil, [][]byte{nil}}
		},
	} {
		b := good
		b.Changes = append([]Change(nil), good.Changes...)
		f(&b)
		if _, err := b.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
	if _, err := DecodeBatch(make([]byte, MaxMessage+1)); err == nil {
		t.Error("a message too large was read")
	}
	if _, err := DecodeRecord(make([]byte, MaxRecord+1)); err == nil {
		t.Error("a record too large was read")
	}
	if _, err := DecodeAsk(make([]byte, MaxAsk+1)); err == nil {
		t.Error("an ask too large was read")
	}
}

// The decoder does not panic on any input, and what it decodes can be encoded again.
func FuzzDecodeBatch(f *testing.F) {
	// Small seeds, the same in every run, suit the fuzzer.
	made := &SignedRecord{Payload: []byte("{}"), Signature: []byte("s"), Chain: [][]byte{{1}, {2}}}
	for _, b := range []Batch{
		{Epoch: 1},
		{Epoch: 1, After: 2, Revision: 7, Head: 8, Listing: 9, Changes: []Change{
			{Revision: 3, Signed: made}, {Revision: 5, Name: "carol", Why: "expelled"}, {Revision: 6, Signed: made},
		}},
	} {
		data, err := b.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	trust, now := newAuthority(f, testCollective).trust(f), time.Now()
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := DecodeBatch(data)
		if err != nil {
			return
		}
		again, err := b.Encode()
		if err != nil {
			t.Fatalf("understood %+v but cannot say it: %v", b, err)
		}
		back, err := DecodeBatch(again)
		if err != nil {
			t.Fatalf("%+v: %v", b, err)
		}
		if diff := cmp.Diff(b, back, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		for _, c := range b.Changes {
			if c.Signed == nil {
				continue
			}
			if _, err := c.Signed.Verify(trust, now); err == nil {
				t.Fatal("a made-up record is taken")
			}
		}
	})
}

func FuzzDecodeAsk(f *testing.F) {
	data, err := Ask{Epoch: 5, After: 6, Listing: 7}.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := DecodeAsk(data)
		if err != nil {
			return
		}
		again, err := a.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := DecodeAsk(again); err != nil || back != a {
			t.Fatalf("%+v became %+v (%v)", a, back, err)
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	data, err := (&SignedRecord{Payload: []byte("{}"), Signature: []byte("s"), Chain: [][]byte{{1}, {2}}}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := DecodeRecord(data)
		if err != nil {
			return
		}
		again, err := s.Encode()
		if err != nil || len(again) > MaxRecord {
			t.Fatalf("%d bytes, %v", len(again), err)
		}
		if back, err := DecodeRecord(again); err != nil || !back.Equal(s) {
			t.Fatalf("%+v became %+v (%v)", s, back, err)
		}
	})
}

// Sign accepts every record that parseRecord accepts.
func FuzzParseRecord(f *testing.F) {
	a := newAuthority(f, testCollective)
	alice := a.issue(f, "alice", terms{subnet: "10.1.2.0/26"})
	f.Add([]byte(`{"collective":"c","name":"a","sequence":1,"issued":"2026-01-01T00:00:00Z","expires":"2026-01-02T00:00:00Z",` +
		`"addresses":["192.0.2.1","2001:db8::1"],"port":1,"roles":["waypoint"],"kinds":["in-band"],"capacity":1,"region":"eu","as":1,` +
		`"wireguard":"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","subnet":"10.1.2.0/26"}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		r, err := parseRecord(payload)
		if err != nil {
			return
		}
		s, err := Sign(r, alice.chain, alice.signature)
		if err != nil {
			if len(payload) > MaxPayload/2 || r.Expires.Unix() <= r.Issued.Unix() {
				return // our JSON may be longer, and has no fractions of seconds
			}
			t.Fatalf("%s: %v", payload, err)
		}
		back, err := parseRecord(s.Payload)
		if err != nil {
			t.Fatalf("%s: %v", s.Payload, err)
		}
		if !back.SameButTime(r) {
			t.Fatalf("%s became %s", payload, s.Payload)
		}
	})
}
