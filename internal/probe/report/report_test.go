package report

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/probe"
)

func records() (all []probe.Record) {
	for i := range 40 {
		at := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC).Add(time.Duration(i) * time.Hour)
		if i >= 20 {
			at = at.Add(48 * time.Hour)
		}
		for j, way := range []probe.Way{probe.TCP, probe.Detours} {
			r := probe.Record{Schema: probe.Schema, Time: at.Add(time.Duration(j) * time.Second), Server: "server:1", Shape: probe.Voice, Way: way,
				Values: []float64{float64(10*(j+1) + i)}, Connect: 5, Replies: []string{"direct"}}
			if way == probe.Detours && i%4 == 0 {
				r.Replies = []string{"bob"}
			}
			if i == 7 {
				r.Error, r.Values, r.Replies = "server:1 refuses <connections>", nil, nil
			}
			all = append(all, r)
		}
	}
	return all
}

func TestText(t *testing.T) {
	s := Summarise(records(), 2, 0)
	var b bytes.Buffer
	if err := s.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"voice to server:1: delay of replies, in ms", "direct 100 %", "direct 74 %, bob 26 %", "over tcp, once: server:1 refuses",
		"no results for 48h59m59s", "2 damaged lines were left out",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	if q := s.Series[0].Values; q.Count != 39 || q.Min != 10 || q.Max != 49 || q.P50 != 30 {
		t.Errorf("%+v", q)
	}
}

func TestPage(t *testing.T) {
	var b bytes.Buffer
	if err := Summarise(records(), 0, 0).WritePage(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`class="gap"`, "bob 26 %", "refuses &lt;connections&gt;", "<svg"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if strings.Contains(b.String(), "http://") || strings.Contains(b.String(), "https://") {
		t.Error("the page needs the network")
	}
}

// A summary without any values can be written as well.
func TestNothing(t *testing.T) {
	for _, list := range [][]probe.Record{nil, records()[14:16]} {
		s := Summarise(list, 0, 0)
		var b bytes.Buffer
		if err := s.WriteText(&b); err != nil {
			t.Error(err)
		}
		if err := s.WritePage(&b); err != nil {
			t.Error(err)
		}
	}
}
