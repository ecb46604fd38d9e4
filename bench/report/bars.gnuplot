# Horizontal bars, one for each contender; a thin line spans its lowest and highest round.
#
# Variables: data (file: row, label, value, lowest, highest, role), rows, label_width,
# highest, x_label, value_format, limit (0: none), limit_label. The colours stand for
# roles: charts.py puts the page's own in their place.

set terminal svg size 720, 64 + 30 * rows + (limit > 0 ? 18 : 0) font 'sans,13' noenhanced
set datafile separator "\t"
set encoding utf8
unset key
unset colorbox
set palette defined (1 '#010103', 2 '#010104', 3 '#010105')
set cbrange [1:3]
set border 0
set lmargin label_width
set rmargin 8
set tmargin (limit > 0 ? 2.0 : 0.6)
set tics textcolor rgb '#010101' scale 0
set xtics nomirror format '%g' textcolor rgb '#010106'
set grid xtics linetype 1 linewidth 1 linecolor rgb '#010102'
set xrange [0:highest]
set yrange [rows + 0.5:0.5]
set xlabel x_label textcolor rgb '#010106' offset 0, 0.3
if (limit > 0) {
	set arrow 1 from limit, graph 0 to limit, graph 1 nohead linewidth 1.2 dashtype (4, 3) \
		linecolor rgb '#010101' back
	set label 1 limit_label at limit, graph 1 offset 0, 0.7 right textcolor rgb '#010106'
}
plot data using (0):1:(0):3:($1 - 0.32):($1 + 0.32):6:ytic(2) with boxxyerror \
		fillstyle solid 1.0 noborder linecolor palette, \
	data using ($4 < $5 ? $3 : 1/0):1:4:5 with xerrorbars pointtype 0 linewidth 1.4 linecolor rgb '#010101', \
	data using 5:1:(sprintf(value_format, $3)) with labels left offset 0.9, 0 \
		textcolor rgb '#010101'
