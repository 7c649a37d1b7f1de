package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// frame is a packet to be written: a time in seconds, and content.
type frame struct {
	at   float64
	data string
}

func (f frame) info() gopacket.CaptureInfo {
	return gopacket.CaptureInfo{Timestamp: time.Unix(0, int64(f.at*1e9)), CaptureLength: len(f.data), Length: len(f.data) + 100}
}

func frames(n int, from float64) (list []frame) {
	for i := range n {
		list = append(list, frame{from + float64(i), fmt.Sprintf("packet %d of %v", i, from)})
	}
	return list
}

type writer interface {
	WritePacket(gopacket.CaptureInfo, []byte) error
}

func write(t testing.TB, w writer, list []frame) {
	t.Helper()
	for _, f := range list {
		if err := w.WritePacket(f.info(), []byte(f.data)); err != nil {
			t.Fatal(err)
		}
	}
}

func pcap(t testing.TB, list []frame) []byte {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriterNanos(&b)
	if err := w.WriteFileHeader(65536, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	write(t, w, list)
	return b.Bytes()
}

func pcapng(t testing.TB, list []frame) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	write(t, w, list)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// bigEndian writes a pcap file with microseconds as a host of the other byte order does.
func bigEndian(list []frame) []byte {
	b := binary.BigEndian.AppendUint32(nil, magicMicroseconds)
	b = append(b, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1)
	for _, f := range list {
		at := int64(f.at * 1e9)
		for _, n := range []uint32{uint32(at / 1e9), uint32(at % 1e9 / 1000), uint32(len(f.data)), uint32(len(f.data) + 100)} {
			b = binary.BigEndian.AppendUint32(b, n)
		}
		b = append(b, f.data...)
	}
	return b
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstandard(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}

// read returns all packets of a stream, and the error that ended it.
func read(from io.Reader) (list []frame, err error) {
	r, err := NewReader(from)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for {
		var p Packet
		if err := r.Next(&p); err != nil {
			return list, err
		}
		if p.Length != len(p.Data)+100 && p.Length != len(p.Data) || p.Link != LinkEthernet {
			return list, fmt.Errorf("packet %+v", p)
		}
		list = append(list, frame{float64(p.Time) / 1e9, string(p.Data)})
	}
}

func TestFormats(t *testing.T) {
	want := frames(3000, 1e6)
	for name, b := range map[string][]byte{
		"pcap": pcap(t, want), "pcapng": pcapng(t, want), "big endian": bigEndian(want),
		"gzip": gzipped(t, pcap(t, want)), "zstd": zstandard(t, pcapng(t, want)),
		"gzip of two members": append(gzipped(t, pcap(t, want)[:50000]), gzipped(t, pcap(t, want)[50000:])...),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := read(oneByte{bytes.NewReader(b)})
			if !errors.Is(err, io.EOF) || !slices.Equal(got, want) {
				t.Fatalf("%d packets, %v", len(got), err)
			}
		})
	}
}

// oneByte returns few bytes at a time, as a pipe does.
type oneByte struct{ from io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.from.Read(p[:min(len(p), 999)]) }

// A file that ends anywhere gives all packets that are whole, and an error unless it ends between two.
func TestCutFiles(t *testing.T) {
	want := frames(20, 1e6)
	for name, b := range map[string][]byte{"pcap": pcap(t, want), "pcapng": pcapng(t, want)} {
		clean := 0
		for n := 1; n < len(b); n++ {
			got, err := read(bytes.NewReader(b[:n]))
			if !slices.Equal(got, want[:len(got)]) {
				t.Fatalf("%s of %d bytes: %v", name, n, got)
			}
			if err == nil {
				t.Fatalf("%s of %d bytes: no end", name, n)
			}
			if err == io.EOF { //nolint:errorlint // and not wrapped
				clean++
			}
		}
		if clean < len(want)-1 || clean > len(want)+3 {
			t.Errorf("%s ends well at %d places", name, clean)
		}
	}
	for name, b := range map[string][]byte{"gzip": gzipped(t, pcap(t, want)), "zstd": zstandard(t, pcap(t, want))} {
		if got, err := read(bytes.NewReader(b[:len(b)-9])); err == nil || err == io.EOF { //nolint:errorlint // so, too
			t.Errorf("cut %s: %d packets, %v", name, len(got), err)
		}
	}
}

func TestDamage(t *testing.T) {
	list := frames(3, 1e6)
	record := bytes.Clone(pcap(t, list))
	binary.LittleEndian.PutUint32(record[pcapHeader+8:], 0xfffffff0)
	block := bytes.Clone(pcapng(t, list))
	binary.LittleEndian.PutUint32(block[4:], 0x7ffffff0)
	for name, c := range map[string]struct {
		bytes []byte
		want  string
	}{
		"a packet's length": {record, "a packet of 4294967280 bytes before byte 40"},
		"a block's length":  {block, "section header of 2147483632 bytes"},
		"no capture":        {[]byte("hello, world"), "neither pcap nor pcapng"},
		"compressed text":   {gzipped(t, []byte("hello, world")), "neither pcap nor pcapng"},
		"bzip2":             {[]byte("BZh91AY&SY"), "gzip and zstd are decompressed"},
	} {
		if _, err := read(bytes.NewReader(c.bytes)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewReader(bytes.NewReader(nil)); !errors.Is(err, io.EOF) {
		t.Errorf("an empty file: %v", err)
	}
}

func file(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func merged(t *testing.T, paths ...string) (list []frame, problems []Problem) {
	t.Helper()
	m, err := Open(paths)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for p := m.Next(); p != nil; p = m.Next() {
		list = append(list, frame{float64(p.Time) / 1e9, string(p.Data)})
	}
	return list, m.Problems()
}

// Rotated files are read in the order of time, whatever their names; two that overlap are merged.
func TestMerge(t *testing.T) {
	first, second, third := frames(10, 100), frames(10, 110), frames(10, 200)
	between := frames(10, 100.5)
	want := slices.Concat(first, second, third, between)
	slices.SortFunc(want, func(a, b frame) int { return int((a.at - b.at) * 10) })
	got, problems := merged(t,
		file(t, "c", pcap(t, third)), file(t, "b.gz", gzipped(t, pcapng(t, second))), file(t, "none", nil),
		file(t, "a", pcap(t, first)), file(t, "other", zstandard(t, pcap(t, between))), file(t, "empty", pcap(t, nil)))
	if !slices.Equal(got, want) {
		t.Fatalf("%v\nwant %v", got, want)
	}
	if len(problems) != 1 || !strings.Contains(problems[0].Error(), "none: it is empty") {
		t.Errorf("%v", problems)
	}
}

// Where no file has a capture, that is an error with the reason of each. A capture without packets is none.
func TestNothingToRead(t *testing.T) {
	whole := pcap(t, frames(5, 1e6))
	for name, c := range map[string]struct {
		bytes []byte
		want  string
	}{
		"an empty file":                  {nil, "it is empty"},
		"gzip of an empty file":          {gzipped(t, nil), "it is empty"},
		"zstd of an empty file":          {zstandard(t, nil), "it is empty"},
		"a cut file header":              {whole[:10], "it ends within the file header"},
		"a cut magic number":             {whole[:2], "it ends within the file header"},
		"gzip, cut in its own header":    {gzipped(t, whole)[:6], "it ends within the file header"},
		"gzip, cut behind its header":    {gzipped(t, whole)[:12], "it ends within the file header"},
		"zstd, cut":                      {zstandard(t, whole)[:9], "it ends within the file header"},
		"a cut first packet":             {whole[:40], "it ends within a packet"},
		"pcapng, cut in its first block": {pcapng(t, frames(5, 1e6))[:6], "it ends within a packet"},
	} {
		path := file(t, "x", c.bytes)
		if _, err := Open([]string{path}); err == nil || !strings.HasPrefix(err.Error(), path+": "+c.want) {
			t.Errorf("%s: %v", name, err)
		}
		m, err := Open([]string{path, file(t, "whole", whole)})
		if err != nil || len(m.Problems()) != 1 {
			t.Errorf("%s, beside a whole one: %v", name, err)
			continue
		}
		m.Close()
	}
	m, err := Open([]string{file(t, "header", pcap(t, nil))})
	if err != nil || m.Next() != nil || len(m.Problems()) > 0 {
		t.Fatalf("a capture without packets: %v", err)
	}
	m.Close()
}

func TestMergeWithDamage(t *testing.T) {
	first, second := frames(10, 100), frames(10, 110)
	cutFile := pcap(t, first)
	got, problems := merged(t, file(t, "a", cutFile[:len(cutFile)-5]), file(t, "b", pcap(t, second)))
	if want := slices.Concat(first[:9], second); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if len(problems) != 1 || !strings.Contains(problems[0].Error(), "it ends within a packet") {
		t.Errorf("%v", problems)
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "none"), t.TempDir(), file(t, "text", []byte("some text"))} {
		if _, err := Open([]string{path}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := Open([]string{Stdin, Stdin}); err == nil {
		t.Error("the standard input was opened twice")
	}
}

func TestIP(t *testing.T) {
	four, six := "\x45four", "\x60six"
	mac := strings.Repeat("m", 12)
	for name, c := range map[string]struct {
		link LinkType
		data string
		want string
	}{
		"ethernet":       {LinkEthernet, mac + "\x08\x00" + four, four},
		"IPv6":           {LinkEthernet, mac + "\x86\xdd" + six, six},
		"VLAN":           {LinkEthernet, mac + "\x81\x00\x00\x01\x08\x00" + four, four},
		"two tags":       {LinkEthernet, mac + "\x88\xa8\x00\x01\x81\x00\x00\x02\x86\xdd" + six, six},
		"PPPoE":          {LinkEthernet, mac + "\x88\x64\x11\x00\x00\x01\x00\x09\x00\x57" + six, six},
		"MPLS":           {LinkEthernet, mac + "\x88\x47\x00\x00\x00\x40\x00\x00\x11\x40" + four, four},
		"ARP":            {LinkEthernet, mac + "\x08\x06" + four, ""},
		"short":          {LinkEthernet, mac, ""},
		"cut tag":        {LinkEthernet, mac + "\x81\x00\x00", ""},
		"raw":            {LinkRaw, four, four},
		"null":           {LinkNull, "\x02\x00\x00\x00" + four, four},
		"any":            {LinkLinux, strings.Repeat("x", 14) + "\x08\x00" + four, four},
		"any, version 2": {LinkLinux2, "\x86\xdd" + strings.Repeat("x", 18) + six, six},
		"PPP":            {LinkPPP, "\xff\x03\x00\x21" + four, four},
		"unknown":        {LinkType(147), four, ""},
	} {
		p := Packet{Link: c.link, Data: []byte(c.data)}
		if got := string(p.IP()); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
		if known := c.link.Known(); known != (name != "unknown") {
			t.Errorf("%s: known %v", name, known)
		}
	}
}

func TestResolutions(t *testing.T) {
	for _, c := range []struct {
		resolution byte
		offset     int64
		ticks      uint64
		want       int64
	}{
		{9, 0, 1_500_000_001, 1_500_000_001}, {6, 0, 1_500_000, 1_500_000_000}, {3, 10, 1500, 11_500_000_000},
		{0x80 | 20, 0, 3 << 19, 1_500_000_000}, {12, 0, 1_500_000_000_000, 1_500_000_000},
	} {
		n, ok := ticks(c.resolution)
		if got := (ngInterface{ticks: n, offset: c.offset}).time(c.ticks); got != c.want || !ok {
			t.Errorf("%#x: %d, want %d", c.resolution, got, c.want)
		}
	}
	for _, resolution := range []byte{0x7f, 0xff, 19} {
		if _, ok := ticks(resolution); ok {
			t.Errorf("%#x is taken", resolution)
		}
	}
}

func FuzzReader(f *testing.F) {
	list := frames(3, 1e6)
	f.Add(pcap(f, list))
	f.Add(pcapng(f, list))
	f.Add(bigEndian(list))
	f.Add(gzipped(f, pcap(f, list)))
	f.Fuzz(func(_ *testing.T, b []byte) {
		r, err := NewReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		defer r.Close()
		var p Packet
		for range 1000 {
			if r.Next(&p) != nil {
				return
			}
			p.IP()
		}
	})
}
