# Goodput over the size of a tensor, one line for each series.
#
# Variables: data (file: size in bytes, one column for each series), series (their names,
# parted by tabs), roles (their colours), count, ticks (the argument of xtics), limit,
# highest.

set terminal svg size 720, 300 font 'sans,13' noenhanced
set datafile separator "\t"
set datafile missing "-"
set encoding utf8
set key outside top left horizontal reverse Left textcolor rgb '#010101' samplen 1.6
set border 0
set lmargin 7
set rmargin 3
set tics textcolor rgb '#010106' scale 0
set grid ytics linetype 1 linewidth 1 linecolor rgb '#010102'
set logscale x 2
set yrange [0:highest]
set ylabel 'Gb/s' textcolor rgb '#010106' offset 1.5, 0
eval 'set xtics ('.ticks.')'
set arrow 1 from graph 0, first limit to graph 1, first limit nohead linewidth 1.2 \
	dashtype (4, 3) linecolor rgb '#010101'
set label 1 'payload limit of the link' at graph 1, first limit offset 0, 0.7 right \
	textcolor rgb '#010106'
plot for [column = 1:count] data using 1:(column(column + 1)) with linespoints \
	linewidth 2.2 pointtype 7 pointsize 0.55 linecolor rgb word(roles, column) \
	title word(series, column)
