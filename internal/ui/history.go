package ui

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// History writes what paths carried and what detours gained, as text. On a terminal, it folds long lines.
func History(w io.Writer, h api.History) error {
	return (&printer{w: w, columns: columnsOf(w)}).history(&h)
}

func (p *printer) history(h *api.History) error {
	if h.Problem != "" {
		p.linef("PROBLEM: %s", h.Problem)
	}
	if len(h.Periods) == 0 {
		p.linef("nothing is recorded of this time")
		return p.err
	}
	form := map[api.HistoryStep]string{api.StepMinute: "15:04", api.StepHour: "2006-01-02 15:04", api.StepDay: "2006-01-02", api.StepMonth: "2006-01"}
	first, last := h.Periods[0].Start.Local(), h.Periods[len(h.Periods)-1].Start.Local()
	if first.Format(time.DateOnly) != last.Format(time.DateOnly) { // the time of day alone would be ambiguous
		form[api.StepMinute] = form[api.StepHour]
	}
	var rows [][]string
	for i := range h.Periods {
		rows = append(rows, gainedRow(h.Periods[i].Start.Local().Format(form[h.Step]), &h.Periods[i]))
	}
	if len(h.Periods) > 1 {
		rows = append(rows, gainedRow("all", &h.Total))
	}
	p.table("FROM|DIRECT|DETOURS|STALLS BRIDGED|TIME SAVED|BETWEEN", rows)
	if g := h.Total.Gained; g.SavedUnknown >= 1 {
		p.note("Where the direct path never carried alone, up to "+seconds(g.SavedUnknown)+" more were saved, or",
			"nothing if all paths share a bottleneck, such as the line at home.")
	} else if g.Saved > 0 && g.SavedLow < g.Saved/2 {
		p.note("Mostly, the direct path was not seen without detours. Where all paths share",
			"a bottleneck, such as the line at home, little was saved: the lower bound.")
	}
	p.linef("")
	rows = nil
	for _, u := range h.Total.Paths {
		rows = append(rows, []string{PathName(api.Subflow{Kind: u.Kind, Waypoint: u.Waypoint}), bytes(u.Received), bytes(u.Sent), trip(u.RTT)})
	}
	p.table("PATH|RECEIVED|SENT|RTT", rows)
	return p.err
}

func gainedRow(name string, period *api.Period) []string {
	var direct, detours uint64
	for _, u := range period.Paths {
		if u.Waypoint == "" && u.Kind == "direct" {
			direct += u.Received + u.Sent
		} else {
			detours += u.Received + u.Sent
		}
	}
	g, stalls := period.Gained, "-"
	if g.Stalls > 0 {
		stalls = strconv.FormatUint(g.Stalls, 10) + " (" + seconds(g.StallTime) + ")"
	}
	saved, between := "-", ""
	if g.SavedHigh > 0 {
		saved, between = seconds(g.Saved), seconds(g.SavedLow)+" to "+seconds(g.SavedHigh)
		if g.Saved == 0 && g.SavedUnknown > 0 {
			saved = "not known"
		}
	}
	return []string{name, bytes(direct), bytes(detours), stalls, saved, between}
}

func seconds(s float64) string {
	switch {
	case s < 100:
		return fmt.Sprintf("%.0f s", s)
	case s < 100*60:
		return fmt.Sprintf("%.0f min", s/60)
	}
	return fmt.Sprintf("%.0f h", s/3600)
}
